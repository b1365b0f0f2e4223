"""A step made comparable: the same noise for every sample, BatchNorm by its moving statistics.

To see whether a step gives the same gradients whole and in slices, what legitimately differs has
to be held still. Random draws are replaced by ones that depend on the position within a sample
only (and on the sample as well, to see whether slices can draw the rows of the whole batch).
BatchNorm layers use their moving statistics, and are noted by name, because they do couple the
samples of a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from legroom.backends.keras.slices.rules import Draw
from legroom.backends.keras.slices.runs import Drawn
from legroom.backends.keras.slices.still_norms import still_norms
from legroom.backends.tensorflow.slices.draws import Instead, drawing

__all__ = ["Seen", "neutral"]


class Seen:
    """What was noticed while a step ran neutralised.

    Attributes:
        draws: Every random draw, in order.
        batch_norms: Names of the BatchNorm layers that would have used the batch's statistics.
    """

    def __init__(self) -> None:
        self.draws: list[Drawn] = []
        self.batch_norms: list[str] = []


@contextlib.contextmanager
def neutral(
    draws: Sequence[Draw] = (), start: int = 0, by_sample: Collection[str] = ()
) -> Iterator[Seen]:
    """Run what is inside with neutral noise and BatchNorm held still.

    Args:
        draws: What the step draws, as far as that is known.
        start: How many samples of the batch come before those that are run.
        by_sample: The scopes whose noise is another for each sample.
    """
    seen = Seen()
    noise = _Noise(draws, start, by_sample)
    with drawing(_drawing(seen, noise)), still_norms() as seen.batch_norms:
        yield seen


class _Noise:
    """Numbers to put in the place of random ones; the arguments are those of `neutral`."""

    def __init__(self, draws: Sequence[Draw], start: int, by_sample: Collection[str]) -> None:
        self._draws = [draw for draw in draws if draw.even]
        self._uneven = {draw.scope for draw in draws if not draw.even}
        self._start = start
        self._by_sample = by_sample
        self._count = 0

    def __call__(self, drawn: Drawn, make: Callable[[Any, tuple[int, ...]], Any]) -> Any:
        """The numbers of the next draw.

        Args:
            drawn: The draw.
            make: Makes numbers of a shape out of a random source.
        """
        if drawn.scope in self._uneven:
            return make(np.random.RandomState(len(drawn.scope)), drawn.shape)
        place, self._count = self._count, self._count + 1
        source = np.random.RandomState(place)
        known = self._draws[place] if place < len(self._draws) else None
        if known is None or known.way == "same":
            return make(source, drawn.shape[1:])
        if drawn.scope in self._by_sample and known.way == "rows":
            first = self._start * known.axes[0]
            return make(source, (first + drawn.shape[0], *drawn.shape[1:]))[first:]
        lengths = zip(drawn.shape, known.grows, strict=True)
        return make(source, tuple(1 if grows else length for length, grows in lengths))


def _drawing(seen: Seen, noise: _Noise) -> Instead:
    def draw(
        op: str, original: Callable[..., Any], values: dict[str, Any], shape: tuple[int, ...] | None
    ) -> Any:
        real = original(**values)
        if not tf.executing_eagerly():
            return real
        assert shape is not None
        drawn = Drawn(op, shape, tf.get_current_name_scope())
        seen.draws.append(drawn)

        def make(source: Any, size: tuple[int, ...]) -> Any:
            if "normal" in op:
                return source.standard_normal(size)
            if "minval" in values:
                lowest, span = int(values["minval"]), int(values["maxval"]) - int(values["minval"])
                return lowest + source.randint(0, 2**16, size) % max(1, span)
            return source.uniform(size=size)

        numbers = noise(drawn, make)
        if "shuffle" in op:
            return tf.identity(values["value"])
        if "uniform" not in op and "normal" not in op:
            numbers = np.ones(())  # counts and the like, whose shape is their parameters' as well
        return tf.cast(tf.broadcast_to(tf.constant(numbers), real.shape), real.dtype)

    return draw
