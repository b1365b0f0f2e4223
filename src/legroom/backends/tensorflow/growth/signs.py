"""Signs of growth that TensorFlow and Keras give: pinned graphs, traces, generators, tensors."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from typing import Any

import tensorflow as tf

from legroom.backends.tensorflow.device import pool
from legroom.backends.tensorflow.growth.hooks import Follower, Made, Recorder, TensorLines, Trace
from legroom.backends.tensorflow.growth.release import pins

__all__ = ["Counts", "Signs"]


@dataclasses.dataclass(frozen=True)
class Counts:
    """What can be counted at any time, cheaply.

    Attributes:
        device_bytes: In use on the device; 0 where it is not known.
        pinned: Entries of the gradient registry.
        generators: Python functions that TensorFlow has been given to call, and keeps.
        traces: Traces noted so far.
        datasets: Data sets noted so far.
    """

    device_bytes: int = 0
    pinned: int = 0
    generators: int = 0
    traces: int = 0
    datasets: int = 0


class Signs:
    """Counts, and what lies behind them.

    Args:
        follower: Who is told of calls that are long.
    """

    def __init__(self, follower: Follower) -> None:
        self._recorder = Recorder(follower)
        self.start = self._recorder.start
        self.lines = TensorLines()

    def stop(self) -> None:
        """Take all hooks away."""
        self.lines.stop()
        self._recorder.stop()

    def counts(self) -> Counts:
        """Count now."""
        return Counts(
            device_bytes=pool.in_use_bytes() or 0,
            pinned=_registered(),
            generators=_python_functions(),
            traces=len(self._recorder.traces),
            datasets=len(self._recorder.datasets),
        )

    def traces(self, since: Counts) -> list[Trace]:
        """The traces made after a count."""
        return self._recorder.traces[since.traces :]

    def datasets(self, since: Counts) -> list[Made]:
        """The data sets made after a count."""
        return self._recorder.datasets[since.datasets :]

    def fills_a_cache(self) -> str:
        """The line that made a data set with a cache in memory; empty where none was made."""
        made = [one.place for one in self._recorder.datasets if one.kind.startswith("Cache")]
        return made[-1] if made else ""

    def pinned_bytes(self, last: int) -> tuple[int, int]:
        """How many of the latest entries hold a training's graph, and the variables they pin.

        Args:
            last: How many entries were added.
        """
        found = list(pins())[-last:] if last > 0 else []
        sizes: dict[int, int] = {}
        for pin in found:
            sizes |= _captured(pin.graph)
        return len(found), sum(sizes.values())


def _captured(graph: Any) -> dict[int, int]:
    """The bytes of the variables that a graph holds, by their handles."""
    sizes = {}
    while graph is not None:
        for external, _ in getattr(graph, "captures", ()):
            data = getattr(external, "_handle_data", None)
            for part in getattr(data, "shape_and_type", ()) or ():
                lengths = [dim.size for dim in part.shape.dim]
                sizes[id(external)] = math.prod(lengths) * tf.as_dtype(part.dtype).size
        graph = getattr(graph, "outer_graph", None)
    return sizes


def _registered() -> int:
    from legroom.backends.tensorflow.growth.release import _registry

    return sum(
        getattr(entry.get("type"), "__name__", "") == "internal_grad_fn"
        for entry in list(_registry().values())
    )


def _python_functions() -> int:
    with contextlib.suppress(Exception):
        from tensorflow.python.ops import script_ops

        return int(script_ops._py_funcs.size())
    return 0
