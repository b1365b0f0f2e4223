"""An estimate as a figure of matplotlib's, for papers."""

from __future__ import annotations

from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.figures import BREAKDOWN
from legroom.prediction.estimate import Estimate

__all__ = ["plot_estimate"]

# Okabe and Ito's colours: told apart by the colour-blind too.
_COLOURS = ("#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442", "#999999")
_MB = 1e6


def plot_estimate(made: Estimate, budget_bytes: int | None = None) -> Any:
    """Draw the memory of a step, op by op, by what it is for.

    Args:
        made: The estimate.
        budget_bytes: A limit to draw beside it.

    Raises:
        LegroomError: If matplotlib is not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise LegroomError(
            "A figure needs matplotlib, which is not installed here: pip install matplotlib"
        ) from error
    # Not pyplot: a figure of its own disturbs none of the user's, and needs no display.
    figure = Figure(figsize=(7, 3.5), layout="constrained")
    axes = figure.add_subplot()
    places = range(len(made.timeline))
    if made.parts:
        shown = [k for k in range(len(BREAKDOWN)) if any(parts[k] for parts in made.parts)]
        axes.stackplot(
            places,
            [[parts[k] / _MB for parts in made.parts] for k in shown],
            labels=[BREAKDOWN[k] for k in shown],
            colors=[_COLOURS[k] for k in shown],
            step="post",
        )
    elif made.timeline:
        axes.step(places, [size / _MB for _, size in made.timeline], where="post", label="in use")
    axes.axhline(made.peak_bytes / _MB, color="black", linewidth=1, label="predicted peak")
    axes.axhspan(
        made.low_bytes / _MB, made.high_bytes / _MB, color="black", alpha=0.08, linewidth=0
    )
    if budget_bytes is not None:
        axes.axhline(budget_bytes / _MB, color="#D55E00", linestyle="--", label="limit")
    axes.set_xlabel("ops of the step, in order")
    axes.set_ylabel("memory in use (MB)")
    axes.set_title(f"{made.model}, batch {made.batch_size}, {made.source}", fontsize="medium")
    axes.set_xlim(0, max(1, len(made.timeline) - 1))
    axes.set_ylim(bottom=0)
    figure.legend(loc="outside right upper", fontsize="small")
    return figure
