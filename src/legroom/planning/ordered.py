"""The strategy that repeats nothing: the same ops, in an order that needs less memory.

With several threads TensorFlow runs what is ready side by side, and what is ready first is seldom
what frees most. In order, a step needs less, and always the same: so it is also known better.
"""

from __future__ import annotations

from collections.abc import Sequence

from legroom.backends.base import current
from legroom.core.errors import LegroomError
from legroom.planning.strategies import Strategy
from legroom.prediction.estimate import Estimate
from legroom.prediction.sources import Prediction

__all__ = ["ordered_strategy"]

_NAME = "ops in order"
# No two large ops run side by side, though each still runs on all cores. By the clock it was 1.00
# to 1.14 of the step as it is, on two cores that others used as well (benchmarks/order.py).
_TIME = 1.1
# An order that takes more than this share of the step as it is saves nothing to speak of.
_WORTH = 0.97
# Where a walk says that it needs this much of the budget, a probe would not find that it fits.
_HOPE = 1.25


def ordered_strategy(
    prediction: Prediction, whole: Estimate, samples: int, budget: int, others: Sequence[Strategy]
) -> Strategy | None:
    """The whole batch, with its ops in order; None where that saves nothing.

    Args:
        prediction: The model as it is.
        whole: The estimate of a whole batch as it is.
        samples: The batch size.
        budget: The bytes there are.
        others: Ways that could be chosen. Where one is faster, nothing is probed for this one.
    """
    if not current().predictions.orders_ops():
        return None
    refusal = _refusal(prediction)
    if refusal is not None:
        return Strategy(_NAME, None, _TIME, False, ordered=True, reason=refusal)
    ordered = Prediction(prediction.model, source=whole.source, order=samples, **prediction.asked)
    try:
        middle, as_it_is = ordered.traced_peak(samples), prediction.traced_peak(samples)
        if middle > _WORTH * as_it_is:
            return None
        faster = any(strategy.fits and strategy.time_factor <= _TIME for strategy in others)
        if whole.source == "probed" and not faster and middle <= _HOPE * budget:
            middle, as_it_is = ordered.estimate(samples).peak_bytes, whole.peak_bytes
    except LegroomError as error:
        return Strategy(_NAME, None, _TIME, False, ordered=True,
                   reason=f"could not be predicted: {error}")  # fmt: skip
    if middle > _WORTH * as_it_is:
        return None
    peak = ordered.peak(samples)
    return Strategy(_NAME, peak, _TIME, peak <= budget, ordered=True)


def _refusal(prediction: Prediction) -> str | None:
    if current().predictions.compiles(prediction.model):
        return "XLA chooses the order of what it compiles"
    if prediction.model.run_eagerly:
        return "run_eagerly: ops run in the order of the code"
    return None
