"""The checks of ``legroom selftest``, each run in a child process of its own.

Run as a file: ``selftest_worker.py CHECK CAP RESULT``. The device is capped first, and every size
is derived from the cap and from what is measured under it, never from the machine. Only the check
that reads a GPU's limit runs without the cap, which would be all that it sees; its pool grows, so
that next to nothing is taken from whoever else uses the card. What a check found goes to the result
file as JSON; an exception is its failure.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

_BATCH = 32
_MAPS = 16  # of the first layer
_STEPS = 4
_WARM_UP = 2  # steps before the first that are steady
_LEFT = (0.6, 0.45, 0.3, 0.2, 0.1, 0.03)  # of what a step needs, one step after the other
_PART = 0.3  # of the cap, which a step takes, about
_CLOSE = 1e-4  # of the largest value in a tensor: what the order of float additions may change


def main() -> None:
    """Run one check."""
    _, check, cap, result = sys.argv
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own]
    import legroom
    from legroom.backends.base import current

    # Where address space is what is capped, a thread's stack is counted: 8 MiB, where that much
    # may be all that a check leaves.
    threading.stack_size(2**20)
    if check == "limit" and current().caps.uses_gpu():
        os.environ["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    elif current().name in ("torch", "jax"):
        import keras  # a cap counts from what the framework has taken by then

        legroom.limit(int(cap))
    else:
        legroom.limit(int(cap))
    import keras

    keras.utils.set_random_seed(1)
    found = _CHECKS[check](int(cap))
    versions = {name: str(sys.modules[name].__version__) for name in ("keras", current().name)}
    found |= {"device": current().device.device_name(), **versions}
    Path(result).write_text(json.dumps(found))


def _check_limit(limit: int) -> dict[str, Any]:
    """The device's limit is known, and nobody contradicts it."""
    from legroom.backends.base import SPELLED, current
    from legroom.machine.budget import describe_reading, judge

    held = _take(2**20)
    reading = current().device.read_device()
    del held
    found = judge(reading)
    if reading.is_gpu:
        # Whether others take from the card is not known without the driver: that is no failure.
        passed = bool(reading.allocator_bytes) and (found.certain or reading.free_bytes is None)
    else:
        passed = found.certain and found.limit_bytes == limit
    told = describe_reading(reading, SPELLED[current().name])
    return {"passed": passed, "figures": told, "memory": reading.to_dict()}


def _check_cap(limit: int) -> dict[str, Any]:
    """More than the cap can't be had, and most of it can."""
    from legroom.backends.base import current

    most = _take(int(limit * 0.7))
    held = current().device.in_use_bytes()
    refused = False
    try:
        _take(int(limit * 0.6))
    except Exception as error:
        if not current().errors.is_oom(error):
            raise
        refused = True
    del most
    gc.collect()
    return {
        "passed": refused and (held or 0) >= limit * 0.6,
        "figures": f"70 % of it can be had, 130 % {'can not' if refused else 'CAN'}",
    }


def _check_survive(limit: int) -> dict[str, Any]:
    """Memory runs out in the middle of a training: everything is as if it had not."""
    import keras

    import legroom
    from legroom.backends.base import current
    from legroom.core.events import Event, RanOut, listening

    class Takes(keras.callbacks.Callback):  # type: ignore[misc]
        """Measures a steady step; then leaves less and less to such steps, until one runs out.

        How little is too little is for the framework to say: ops that run side by side when there
        is room run one after the other when there is none.
        """

        need = 0
        takes = False
        ran_out = False
        held: Any = None

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if batch < _WARM_UP:
                return
            if not self.takes:
                current().device.reset_peak()
                self.need = -(current().device.in_use_bytes() or 0)
            elif not self.ran_out:
                share = _LEFT[batch - _WARM_UP]
                # Batches to come are read meanwhile, into the same memory.
                self.held = _take_all_but(int(share * self.need) + x.nbytes + y.nbytes, limit)

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch >= _WARM_UP and not self.takes:
                peak = current().device.peak_bytes()
                # Nobody counts it on a CPU with PyTorch: there it is what `_model` aims at.
                self.need = int(limit * _PART) if peak is None else self.need + peak
            self.held = None

        def hear(self, event: Event) -> None:
            self.ran_out = self.ran_out or isinstance(event, RanOut)

    steps = _WARM_UP + len(_LEFT)
    quiet, disturbed, taker = _model(limit), _model(limit), Takes()
    x, y = _data(quiet, _BATCH * steps)
    fit: dict[str, Any] = {
        "batch_size": _BATCH,
        "shuffle": False,
        "verbose": 0,
        "callbacks": [taker],
    }
    logs = legroom.fit(quiet, x, y, **fit).history
    taker.takes = True
    with listening(taker.hear):
        history = legroom.fit(disturbed, x, y, **fit)
    off = max(
        _difference(quiet, disturbed),
        *(abs(logs[name][0] - history.history[name][0]) / abs(logs[name][0]) for name in logs),
    )
    done = int(disturbed.optimizer.iterations)
    report = history.legroom
    same = report.samples_lost == 0 and done == steps and off < _CLOSE
    return {
        "passed": report.ooms >= 1 and same,
        "figures": f"{report.ooms} survived in {report.oom_seconds:.0f} s, {done} of {steps} "
        f"steps, weights, slots and metrics differ by {off:.0e}",
    }


def _check_slices(limit: int) -> dict[str, Any]:
    """Slices make the update of the whole batch."""
    import legroom

    off = {}
    for name in ("SGD", "Adam"):
        whole, sliced = _model(limit, name), _model(limit, name)
        x, y = _data(whole, _BATCH * _STEPS - 5)
        whole.fit(x, y, batch_size=_BATCH, shuffle=False, verbose=0)
        legroom.fit(sliced, x, y, batch_size=_BATCH, shuffle=False, verbose=0, slice_size=7)
        off[name] = _difference(whole, sliced)
    return {
        "passed": all(value < _CLOSE for value in off.values()),
        "figures": ", ".join(f"{name} differs by {value:.0e}" for name, value in off.items()),
    }


def _check_mixed(limit: int) -> dict[str, Any]:
    """Half precision with loss scaling stays finite in slices, and goes where the whole goes."""
    import keras
    import numpy as np

    import legroom

    keras.mixed_precision.set_global_policy("mixed_float16")
    losses, finite = [], True
    for slice_size in (None, 8):
        model = _model(limit)
        x, y = _data(model, _BATCH * 2)
        history = legroom.fit(
            model, x, y, batch_size=_BATCH, shuffle=False, verbose=0, slice_size=slice_size
        )
        finite = finite and all(np.isfinite(weight).all() for weight in model.get_weights())
        losses.append(history.history["loss"][0])
    off = abs(losses[0] - losses[1]) / abs(losses[0])
    return {
        "passed": bool(finite and off < 1e-2),
        "figures": f"weights {'finite' if finite else 'NOT finite'}, loss differs by {off:.0e}",
    }


def _check_refuse(limit: int) -> dict[str, Any]:
    """What can't fit says so, and has changed nothing."""
    import keras

    import legroom

    class Takes(keras.callbacks.Callback):  # type: ignore[misc]
        """Takes nearly all when a step is about to run: Keras has started its threads by then."""

        held: Any = None

        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            # Half of the image's first maps are left, which one op asks for: where the small ones
            # find no room, each waits ten seconds for it.
            self.held = _take_all_but(x.nbytes * _MAPS // 2, limit)

    # One sample takes what a batch does elsewhere: many times what a thread gives back at its end.
    model, untouched = _model(limit, batch=1), _model(limit, batch=1)
    x, y = _data(model, 1)
    for each in (model, untouched):
        each.fit(x, y, verbose=0)
    message, taker = "", Takes()
    try:
        legroom.fit(model, x, y, batch_size=1, verbose=0, callbacks=[taker])
    except legroom.CannotFitError as error:
        message = str(error)
    taker.held = None
    off = _difference(untouched, model)
    gc.collect()
    history = legroom.fit(model, x, y, batch_size=1, verbose=0)
    return {
        "passed": bool(message) and off == 0.0 and history.legroom.samples_seen == 1,
        "figures": f"{'CannotFitError' if message else 'NO CannotFitError'}, weights and slots "
        f"differ by {off:.0g}, trains on with more memory",
    }


_CHECKS: dict[str, Callable[[int], dict[str, Any]]] = {
    "limit": _check_limit,
    "cap": _check_cap,
    "survive": _check_survive,
    "slices": _check_slices,
    "mixed": _check_mixed,
    "refuse": _check_refuse,
}


def _model(limit: int, optimizer: str = "SGD", batch: int = _BATCH) -> Any:
    """A small net over grey images whose step on a batch takes about a third of the cap.

    Smooth throughout: at a kink the last digit, which slices may change, would turn a unit on.
    Without convolutions: TensorFlow's kernel for their gradient takes up to 25 MB in one piece,
    also for a single sample, which may not be found among what the check leaves free.
    """
    import keras

    # About eight tensors of the size of the first maps are alive at the peak of a step.
    side = max(16, int((limit * _PART / (batch * _MAPS * 4 * 8)) ** 0.5))
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((side, side, 1)),
            keras.layers.Dense(_MAPS, activation="tanh"),
            keras.layers.AveragePooling2D(2),
            keras.layers.Dense(2 * _MAPS, activation="tanh"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(5, activation="softmax", dtype="float32"),
        ]
    )
    chosen = {
        "SGD": keras.optimizers.SGD(0.05, momentum=0.9),
        "Adam": keras.optimizers.Adam(1e-3),
    }[optimizer]
    model.compile(chosen, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def _data(model: Any, samples: int) -> tuple[Any, Any]:
    import numpy as np

    rng = np.random.default_rng(3)
    labels = rng.integers(0, 5, samples)
    images = rng.normal(labels[:, None, None, None], 1.0, (samples, *model.input_shape[1:]))
    return images.astype("float32"), labels


def _take(size: int) -> Any:
    """So many bytes of the device in one piece, held until the result is dropped."""
    import keras

    return keras.ops.ones((size,), dtype="uint8")


def _take_all_but(leave: int, limit: int) -> list[Any]:
    """All of the device but so much, in small pieces: what is free lies in pieces as well."""
    from legroom.backends.base import current

    device = current().device
    # Not smaller, or PyTorch's on a CPU would come from larger pieces that the C library keeps.
    piece = min(2**20, max(2**18, leave // 4))
    held: list[Any] = []
    while (count := (limit - leave - (device.in_use_bytes() or 0)) // piece) > 0:
        held += [_take(piece) for _ in range((count + 1) // 2)]
    if device.peak_bytes() is None:
        # Address space is counted, not memory: the C library may hold some that a step can have.
        while _can_be_had(leave + piece):
            held.append(_take(piece))
    return held


def _can_be_had(size: int) -> bool:
    """Whether so many bytes can be had now, in one piece."""
    from legroom.backends.base import current

    try:
        _take(size)
    except Exception as error:
        if not current().errors.is_oom(error):
            raise
        return False
    return True


def _difference(one: Any, other: Any) -> float:
    """The largest difference between all the state of two models, by the largest in its tensor."""
    import numpy as np

    worst = 0.0
    for mine, its in zip(_state(one), _state(other), strict=True):
        if not np.isfinite(its).all():
            return float("inf")
        scale = max(float(np.abs(mine).max()), 1e-12)
        worst = max(worst, float(np.abs(mine - its).max()) / scale)
    return worst


def _state(model: Any) -> list[Any]:
    import keras
    import numpy as np

    variables = [*model.weights, *model.optimizer.variables]
    return [np.asarray(keras.ops.convert_to_numpy(v), "float64") for v in variables]


if __name__ == "__main__":
    main()
