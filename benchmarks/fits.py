"""`fit` called in a loop, an epoch at a time, on one model: guarded over plain, in one process.

People write `for epoch in range(…): model.fit(x, y, epochs=1)`. The first calls trace; what is
compared are the tenth one and those after it.
"""

from __future__ import annotations

import functools
import json
import sys
import time
from collections.abc import Callable

import keras
import numpy as np
import tensorflow as tf
from overhead import convolutional, toy
from turns import take_turns, untuned

import legroom

_BEFORE = 9  # calls that are not counted
_FEWEST = 30


def measure(name: str, manner: str) -> dict[str, float]:
    """Take turns and compare.

    Args:
        name: The model.
        manner: "fit" for `legroom.fit`, "guard" for a guarded model's own `fit`.
    """
    build = {"toy": toy, "convolutional": convolutional}[name]
    _, x, y, size = build()
    # Steps enough for a call that takes a tenth of a second or two, as a short epoch does; and a
    # short last batch.
    count = (100 if name == "toy" else 6) * size + size // 2
    data = untuned(tf.data.Dataset.from_tensor_slices((x[:count], y[:count])).batch(size))
    models = [build()[0], build()[0]]
    for model in models:
        model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    if manner == "guard":
        legroom.guard(models[1])
    calls: list[Callable[..., object]] = [
        models[0].fit,
        models[1].fit if manner == "guard" else functools.partial(legroom.fit, models[1]),
    ]

    def timed(call: Callable[..., object]) -> float:
        began = time.perf_counter()
        call(data, verbose=0)
        return time.perf_counter() - began

    for _ in range(_BEFORE):
        for call in calls:
            timed(call)
    return take_turns(*(functools.partial(timed, call) for call in calls), fewest=_FEWEST)


if __name__ == "__main__":
    keras.utils.set_random_seed(0)
    np.random.seed(0)
    print(json.dumps(measure(*sys.argv[1:3])))
