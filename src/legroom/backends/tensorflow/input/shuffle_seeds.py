"""Shuffles that nobody seeded, given seeds that another process finds again.

`tf.data.Dataset.shuffle` without a seed draws its order from nowhere. With one it still draws a
new order for each epoch, but the same ones in each process: that is all that is changed here.
TensorFlow's own seed is not set, because with it random ops inside a pipeline would do the same in
every epoch.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

from tensorflow.python.eager import context  # no Keras: it may be half imported by now

from legroom.backends import patches
from legroom.backends.parts import DATASET

__all__ = ["seed_shuffles"]


def seed_shuffles(seed: int) -> None:
    """Give shuffles without a seed one, in the order in which they are made."""
    seeds = random.Random(seed)

    def seeded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def shuffle(
            self: Any, buffer_size: Any, seed: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            if seed is None and context.global_seed() is None:
                seed = seeds.randrange(1, 2**31)
            return original(self, buffer_size, seed, *args, **kwargs)

        return shuffle

    patches.put(__name__, DATASET, "shuffle", seeded)
