"""What TensorFlow and Keras pin after a training, and how it is let go.

A graph-mode `fit` leaves an entry in TensorFlow's registry of gradients for each `all_reduce` of
its optimizer. The entry's function holds the graph, and with it the weights and the optimizer's
slots, for as long as the process lives. What the entry is for, the gradient of that `all_reduce`,
needs none of it: so the entry is kept, and its function is replaced by one that computes the same
and holds nothing. Entries of other origin, a user's `tf.custom_gradient` among them, are not
touched. A TensorFlow that has no such registry, or no such entries, is left as it is.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from legroom.backends.tensorflow.growth.weighing import weigh

__all__ = ["Pin", "forget_kernels", "pins", "release", "unpin", "weigh"]

_MADE_BY = "tensorflow.python.distribute.distribute_lib"
# What a user has set, or sees, and would miss: clear_session() forgets all of it.
_TRACKERS = ("GLOBAL_STATE_TRACKER", "GLOBAL_SETTINGS_TRACKER")


class Pin:
    """An entry of the registry that holds a training's graph.

    Args:
        name: The entry's name.
        gradient: The gradient it was made for.
        outputs: How many of the results it has to answer with None.
        held: What the entry's function holds beside.
    """

    def __init__(
        self, name: str, gradient: Callable[..., Any], outputs: int, held: list[Any]
    ) -> None:
        self.name = name
        self._gradient = gradient
        self._outputs = outputs
        self._held = held

    @property
    def graph(self) -> Any:
        """The graph that is held."""
        for value in self._held:
            for leaf in value if isinstance(value, (list, tuple)) else [value]:
                graph = getattr(leaf, "graph", None)
                if graph is not None:
                    return graph
        return None

    def slim(self) -> Callable[..., Any]:
        """The same gradient by a function that holds no graph."""
        return _slim_gradient(self._gradient, self._outputs)


def pins() -> Iterator[Pin]:
    """The entries that hold graphs of trainings now."""
    for name, entry in list(_registry().items()):
        if name.startswith("CustomGradient-"):
            pin = _pin(name, entry.get("type") if isinstance(entry, dict) else None)
            if pin is not None:
                yield pin


def unpin() -> int:
    """Have the entries hold nothing any more.

    Returns:
        How many entries held a graph.
    """
    registry = _registry()
    found = list(pins())
    for pin in found:
        registry[pin.name] = {**registry[pin.name], "type": pin.slim()}
    return len(found)


def release() -> int:
    """Let go of what a training left behind in this process; live models keep working.

    Random states, the dtype policy, names and other settings of Keras stay as they are.

    Returns:
        How many graphs of trainings had been held.
    """
    graphs = unpin()
    _drop_failed_frames()
    with _keras_settings_kept():
        keras.utils.clear_session(free_memory=False)
    gc.collect()
    if _drop_iterators():
        gc.collect()
    return graphs


def forget_kernels() -> None:
    """Drop the kernels that TensorFlow has made; those still needed are made again."""
    from tensorflow.python.eager import context

    current = context.context_safe()
    if current is not None and hasattr(current, "clear_kernel_cache"):
        current.clear_kernel_cache()


def _registry() -> dict[str, Any]:
    """TensorFlow's registry of gradients; empty where this version has another."""
    from tensorflow.python.framework import ops

    registry = getattr(getattr(ops, "gradient_registry", None), "_registry", None)
    return registry if isinstance(registry, dict) else {}


def _pin(name: str, function: Any) -> Pin | None:
    """What an entry's function holds, if it is one of an `all_reduce`'s."""
    cells = _cells(function)
    if len(cells) == 1:  # the function that is registered only calls another
        cells = _cells(next(iter(cells.values())))
    gradient, outputs = cells.get("grad_fn"), cells.get("flat_result_len")
    if not isinstance(gradient, types.FunctionType) or not isinstance(outputs, int):
        return None
    if gradient.__module__ != _MADE_BY or ".all_reduce." not in gradient.__qualname__:
        return None
    held = [value for key, value in cells.items() if key not in ("grad_fn", "flat_result_len")]
    return Pin(name, gradient, outputs, held)


def _cells(function: Any) -> dict[str, Any]:
    """The variables that a function has from where it was made."""
    if not isinstance(function, types.FunctionType) or function.__closure__ is None:
        return {}
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        with contextlib.suppress(ValueError):  # a cell that is empty
            found[name] = cell.cell_contents
    return found


def _slim_gradient(gradient: Callable[..., Any], outputs: int) -> Callable[..., Any]:
    def slim(unused_op: Any, *upstream: Any) -> list[Any]:
        del unused_op
        # The op that it is the gradient of passes on the results, and then the arguments.
        return [None] * outputs + list(tf.nest.flatten(gradient(*upstream[:outputs])))

    return slim


def _drop_failed_frames() -> None:
    """Clear the frames of the last error that was shown: they hold a failed step's tensors."""
    trace = getattr(sys, "last_traceback", None)
    if isinstance(trace, types.TracebackType):
        traceback.clear_frames(trace)


@contextlib.contextmanager
def _keras_settings_kept() -> Iterator[None]:
    """Carry what a user has set in Keras over a `clear_session()`.

    It forgets the dtype policy and the random seed as well, and counts layers' names from the
    start, so that new layers can't be joined with old ones. None of that is memory.
    """
    from keras.src.backend.common import global_state

    kept = {
        name: dict(vars(getattr(global_state, name)))
        for name in _TRACKERS
        if hasattr(global_state, name)
    }
    try:
        yield
    finally:
        for name, values in kept.items():
            vars(getattr(global_state, name)).update(values)


def _drop_iterators() -> bool:
    """Drop the iterators of validation data that a `fit` which failed has left in its model."""
    dropped = False
    for candidate in gc.get_objects():
        if (
            issubclass(type(candidate), keras.Model)
            and getattr(candidate, "_eval_epoch_iterator", None) is not None
        ):
            candidate._eval_epoch_iterator = None
            dropped = True
    return dropped
