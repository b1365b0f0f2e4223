"""What a step does beside its training: summaries, printed lines, Python that a graph calls.

None of it can be undone, and slices would do it several times. Summaries are written once a step,
by the last slice. What a Python function does can't be known: each slice calls it, and it is named.
A step on trial writes and prints nothing, and calls no Python function that gives no result.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import Any

import tensorflow as tf

from legroom.backends import patches

__all__ = ["SideEffects", "on_trial", "side_effects", "summaries_once"]

_OPS = "tensorflow.python.ops"
_WRITES = ("write_summary", "write_raw_proto_summary", "write_scalar_summary",
           "write_histogram_summary", "write_image_summary", "write_audio_summary",
           "write_graph_summary", "import_event")  # fmt: skip
_SUMMARY_OPS = frozenset(
    {"WriteSummary", "WriteRawProtoSummary", "WriteScalarSummary", "WriteHistogramSummary",
     "WriteImageSummary", "WriteAudioSummary", "WriteGraphSummary", "ImportEvent"}
)  # fmt: skip
# Not PyFuncStateless: whoever asks for it says that the function has no effects.
_PYTHON_OPS = {"EagerPyFunc": "tf.py_function", "PyFunc": "tf.numpy_function"}


@dataclasses.dataclass
class SideEffects:
    """What a step does beside its training.

    Attributes:
        summaries: Whether it writes summaries.
        calls: By which functions of TensorFlow it calls Python.
    """

    summaries: bool = False
    calls: set[str] = dataclasses.field(default_factory=set)


def side_effects(ops: Collection[str]) -> SideEffects:
    """What a traced step does beside its training, by the types of its ops."""
    calls = {name for op, name in _PYTHON_OPS.items() if op in ops}
    return SideEffects(not _SUMMARY_OPS.isdisjoint(ops), calls)


@contextlib.contextmanager
def summaries_once(writes: Any) -> Iterator[None]:
    """Let a slice write summaries only where it is to.

    Args:
        writes: Whether this slice does, as a tensor.
    """

    def only_if(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            def written() -> Any:
                original(*args, **kwargs)
                return tf.constant(True)

            return tf.group(tf.cond(writes, written, lambda: tf.constant(False)))

        return write

    with _replaced_writes(only_if):
        yield


@contextlib.contextmanager
def on_trial(seen: SideEffects | None = None) -> Iterator[None]:
    """Let this thread write no summary, print nothing, and call no Python that gives no result.

    Args:
        seen: Where what would have happened is noted.
    """
    seen = SideEffects() if seen is None else seen

    def unwritten(original: Callable[..., Any]) -> Callable[..., Any]:
        def write(*args: Any, **kwargs: Any) -> Any:
            seen.summaries = True
            return tf.no_op()

        return write

    def unprinted(original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: tf.no_op()

    with (
        _replaced_writes(unwritten),
        patches.replaced(f"{_OPS}.gen_logging_ops", "print_v2", unprinted),
        patches.replaced(f"{_OPS}.script_ops", "_internal_py_func", _uncalled(seen, eager=True)),
        patches.replaced(f"{_OPS}.script_ops", "py_func_common", _uncalled(seen, eager=False)),
    ):
        yield


def _replaced_writes(make: patches.Make) -> contextlib.ExitStack:
    with contextlib.ExitStack() as stack:
        for name in _WRITES:
            stack.enter_context(patches.replaced(f"{_OPS}.gen_summary_ops", name, make))
        return stack.pop_all()


def _uncalled(seen: SideEffects, *, eager: bool) -> patches.Make:
    """Instead of a function of TensorFlow that calls Python.

    Args:
        seen: Where the call is noted.
        eager: Whether it is the one below `tf.py_function`, and not NumPy's.
    """

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(func: Any, inp: Any, Tout: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("use_eager_py_func"):
                seen.calls.add("tf.py_function")
            elif args[0] if args else kwargs.get("stateful", not eager):
                seen.calls.add("tf.numpy_function")
            if isinstance(Tout, (list, tuple)) and not Tout:
                return [] if tf.executing_eagerly() else tf.no_op()
            return original(func, inp, Tout, *args, **kwargs)

        return call

    return make
