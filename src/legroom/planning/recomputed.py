"""Ways that recompute: which blocks, what they save, how long it takes.

What recomputing saves is the difference of two walks, over the step's graph as it is and with the
blocks recomputed. Both are off in the same places, so their difference is nearer than either. The
error bar is that of the step as it is, in proportion to what is left of all but the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from legroom.backends.base import current
from legroom.core.traces import LayerCost
from legroom.planning.blocks import choose_blocks, held_bytes, leanest_blocks
from legroom.planning.choose import largest_that_fits, slice_time
from legroom.planning.strategies import Strategy
from legroom.prediction.estimate import Estimate
from legroom.prediction.sources import Prediction

__all__ = ["Recompute"]

# The gradients take about twice as long as the pass that they come after.
_PASSES = 3.0
# A strategy that takes more than this share of the step as it is saves nothing to speak of.
_WORTH = 0.95
# How often blocks are chosen anew because those before were predicted to need more than there is,
# or to leave more of it unused than this share.
_TRIES = 4
_UNUSED = 0.03


class Recompute:
    """The strategies to recompute parts of a model.

    Args:
        prediction: The model as it is.
        samples: The batch size.
        whole: The estimate of a whole batch as it is. Where XLA compiles the step, it is asked for
            its own figures of the recomputed one as well.
    """

    def __init__(self, prediction: Prediction, samples: int, whole: Estimate) -> None:
        self._plain = prediction
        self._samples = samples
        self._middle = whole.peak_bytes
        self._held = whole.breakdown["weights"] + whole.breakdown["optimizer"]
        self._whole_peak = max(whole.high_bytes, whole.first_step_bytes)
        self._compiled = whole.source == "compiled"
        asked = prediction.asked
        self._costs: Sequence[LayerCost]
        self._costs, self._joined = current().recompute.step_costs(
            prediction.model, samples, asked["data"], asked["length"]
        )
        self._kept = sum(cost.kept_bytes for cost in self._costs)
        self._leanest = leanest_blocks(self._costs, joined=self._joined)
        self._peaks: dict[tuple[tuple[str, ...], ...], int] = {}

    def whole(self, budget: int) -> Strategy | None:
        """The whole batch, with as little recomputed as the budget allows.

        Returns:
            It, or the strategy that needs least where none fits; None where nothing can be saved.
        """
        if not self._leanest:
            return None
        best: Strategy | None = None
        tried: list[Strategy] = []
        least = held_bytes(self._costs, self._leanest)
        enough, too_much = 0, self._kept
        target = max(least, self._kept - (self._whole_peak - budget))
        for _ in range(_TRIES):
            strategy = self._strategy(self._blocks(target), budget)
            tried.append(strategy)
            unused = budget - (strategy.peak_bytes or 0)
            if strategy.fits:
                best, enough = strategy, target
            else:
                too_much = target
            if 0 <= unused <= _UNUSED * budget or too_much - max(enough, least) <= _UNUSED * budget:
                break
            target = max(least, target + unused)
            if not enough < target < too_much:
                target = (max(enough, least) + too_much) // 2
        if best is None:
            best = min(
                [*tried, self._strategy(self._leanest, budget)], key=lambda x: x.peak_bytes or 0
            )
        return best if (best.peak_bytes or 0) <= _WORTH * self._whole_peak else None

    def _blocks(self, target: int) -> Sequence[tuple[int, int]]:
        """What to recompute with so many bytes for all that is kept."""
        found = choose_blocks(self._costs, target, joined=self._joined)
        return self._leanest if found is None else found

    def sliced(
        self, as_it_is: Callable[[int], int], budget: int, *, exact: bool
    ) -> Strategy | None:
        """Slices, with as much recomputed as saves anything.

        Args:
            as_it_is: What slices of a size take without that.
            budget: The bytes there are.
            exact: Whether slices make the same update.
        """
        if not self._leanest or self._compiled:
            return None
        names = self._named(self._leanest)
        leaner = self._traced(names)

        def peak(size: int) -> int:
            saved = self._plain.traced_peak(size) - leaner.traced_peak(size)
            return as_it_is(size) - max(0, saved)

        size = largest_that_fits(peak, budget, max(1, self._samples - 1)) or 1
        size = -(-self._samples // -(-self._samples // size))
        time = slice_time(self._samples, size) * self._time(self._leanest)
        count = -(-self._samples // size)
        return Strategy(
            f"{count} slices of {size}, {_recompute(names)}", peak(size), time,
            peak(size) <= budget, exact, slice_size=size, recompute=names,
        )  # fmt: skip

    def _strategy(self, blocks: Sequence[tuple[int, int]], budget: int) -> Strategy:
        names = self._named(blocks)
        peak = self.peak(names)
        return Strategy(
            _recompute(names), peak, self._time(blocks), peak <= budget, recompute=names
        )

    def peak(self, names: tuple[tuple[str, ...], ...]) -> int:
        """The peak of a whole batch with these blocks recomputed, error bar included."""
        if names not in self._peaks:
            self._peaks[names] = self._peak(names)
        return self._peaks[names]

    def _peak(self, names: tuple[tuple[str, ...], ...]) -> int:
        if self._compiled:
            compiled = self._prediction("compiled")
            with current().recompute.recomputing(self._plain.model, names):
                compiled.estimate(self._samples)
            return compiled.peak(self._samples)
        leaner = self._traced(names)
        saved = self._plain.traced_peak(self._samples) - leaner.traced_peak(self._samples)
        left = self._middle - saved
        doubt = max(0, left - self._held) / max(1, self._middle - self._held)
        return left + int(doubt * (self._whole_peak - self._middle))

    def _traced(self, names: tuple[tuple[str, ...], ...]) -> Prediction:
        """The model with these blocks recomputed, traced."""
        prediction = self._prediction("traced")
        with current().recompute.recomputing(self._plain.model, names):
            prediction.traced_peak(1)
        return prediction

    def _prediction(self, source: str) -> Prediction:
        return Prediction(self._plain.model, source=source, **self._plain.asked)

    def _time(self, blocks: Sequence[tuple[int, int]]) -> float:
        total = sum(cost.work for cost in self._costs)
        again = sum(cost.work for start, stop in blocks for cost in self._costs[start:stop])
        return 1.0 + (again / total / _PASSES if total else 0.0)

    def _named(self, blocks: Sequence[tuple[int, int]]) -> tuple[tuple[str, ...], ...]:
        return tuple(tuple(cost.name for cost in self._costs[start:stop]) for start, stop in blocks)


def _recompute(names: Sequence[Sequence[str]]) -> str:
    count = sum(len(block) for block in names)
    return f"recompute {count} layer{'s' * (count != 1)}"
