"""What a step needs, by XLA's own figures: the whole batch, and slices by two sizes of them."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["SlicedNeeds"]


class SlicedNeeds:
    """The bytes that a step takes beyond what is in use before it.

    Slices are compiled in two sizes, when they are first asked for: what others take lies on the
    line through both.

    Args:
        samples: The samples in a batch.
        whole: What the whole batch takes.
        sliced: What slices of a size take, by compiling them; None where they can't be had.
    """

    source, low, high, alike = "compiled", 0.97, 1.03, True

    def __init__(
        self, samples: int, whole: int, sliced: Callable[[int], int | None] | None = None
    ) -> None:
        self._samples = samples
        self._whole = whole
        self._sliced = sliced
        self._line: tuple[float, float] | None = None

    def __call__(self, samples: int) -> int:
        """With slices of this size; with the batch's size, whole."""
        if samples == self._samples:
            return self._whole
        if samples > self._samples:
            return self._whole * samples // self._samples
        fixed, each = self._line_of_slices()
        return int(fixed + each * samples)

    def _line_of_slices(self) -> tuple[float, float]:
        if self._line is None:
            self._line = (0.0, self._whole / self._samples)
            small, large = max(1, self._samples // 8), max(2, self._samples // 2)
            if self._sliced is not None and small < large < self._samples:
                less, more = self._sliced(small), self._sliced(large)
                if less is not None and more is not None:
                    each = max(0.0, (more - less) / (large - small))
                    self._line = (less - each * small, each)
        return self._line
