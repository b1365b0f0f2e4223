"""Ways in slices: what they need, and which size to choose."""

from __future__ import annotations

from collections.abc import Callable

from legroom.backends.base import current
from legroom.planning.choose import largest_that_fits, slice_time
from legroom.planning.strategies import Strategy
from legroom.prediction.estimate import Estimate
from legroom.prediction.sources import Prediction

__all__ = ["Slices"]

# How far below what is predicted for ops that wait for each other a step was seen to stay. To be
# refused a training that would have run is worse than to see one fail that was said to be unsure.
_LUCK = 0.85


class Slices:
    """A batch in slices, as the guard runs them: with sums of their gradients.

    Args:
        prediction: The model as it is.
        whole: The estimate of a whole batch as it is.
        samples: The size of the batch.
        exact: Whether slices make the same update.
    """

    def __init__(
        self, prediction: Prediction, whole: Estimate, samples: int, *, exact: bool
    ) -> None:
        self._plain = prediction
        self._sums = Prediction(
            prediction.model, source="traced", slice_of=samples, **prediction.asked
        )
        self._samples = samples
        self._exact = exact
        # What a compiler has planned is not less by luck.
        self._planned = whole.source == "compiled" and not current().predictions.probes()
        self._weights = whole.breakdown["weights"]
        self._input = whole.breakdown["input"] / samples

    def peak(self, size: int) -> int:
        """The peak of slices of a size, error bar included."""
        return self._sums.peak(size) + self._beside(size)

    def strategy(self, budget: int) -> Strategy:
        """The largest slices that fit; one sample at a time where none do."""
        size = self._largest(self.peak, budget)
        if size == 0:
            time = slice_time(self._samples, 1)
            return Strategy(
                "one sample at a time", self.peak(1), time, False, self._exact, slice_size=1
            )
        # The same number of slices, but all of about the same size.
        return self._strategy(-(-self._samples // -(-self._samples // size)), self.peak)

    def perhaps(self, budget: int) -> Strategy | None:
        """Slices that fit if all goes well, though not by the error bar; None if none do."""
        lucky = () if self._planned else (self._luckiest,)
        for peak in (self._middle, self._least, *lucky):
            most = self._largest(peak, budget)
            if most:
                # Room for doubt; where there is more of it, slices grow.
                return self._strategy(max(1, most // 2), peak, sure=False)
        return None

    def held_back(self) -> int:
        """What a guarded step on a whole batch takes beside one of Keras's.

        It applies no gradient before all of them are there.
        """
        added = self._sums.traced_peak(self._samples) - self._plain.traced_peak(self._samples)
        # Part of the difference is chance in the allocator; gradients are as large as weights.
        return max(0, min(added, self._weights))

    def _middle(self, size: int) -> int:
        return self._sums.middle_peak(size) + self._beside(size)

    def _least(self, size: int) -> int:
        return self._sums.least_pool(size) + self._beside(size)

    def _luckiest(self, size: int) -> int:
        return int(_LUCK * self._least(size))

    def _beside(self, size: int) -> int:
        """The rest of the batch; and what a probe saw of a step that a walk does not see."""
        return self._plain.seen_by_probe(size) + int(self._input * (self._samples - size))

    def _largest(self, peak: Callable[[int], int], budget: int) -> int:
        return largest_that_fits(peak, budget, max(1, self._samples - 1))

    def _strategy(self, size: int, peak: Callable[[int], int], *, sure: bool = True) -> Strategy:
        count = -(-self._samples // size)
        name, time = f"{count} slices of {size}", slice_time(self._samples, size)
        return Strategy(name, peak(size), time, True, self._exact, slice_size=size, sure=sure)
