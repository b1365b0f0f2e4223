"""Losses that PyTorch divides by something else than the number of samples.

A cross entropy with `ignore_index` or class weights is divided by the entries that count, and
slices of padded text have different numbers of them. So a slice divides by its share of what the
whole batch counts, and slices add up to the loss of the batch.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from legroom.backends import patches
from legroom.backends.parts import TORCH_LOSSES

__all__ = ["Counted", "counting"]

# As `torch.nn.functional` hands reductions to its kernels.
_MEAN, _SUM = 1, 2


class Counted:
    """The losses of one slice, in the order in which the step computes them.

    Args:
        share: The slice's part of the batch's samples; None for a whole batch.
        totals: What the whole batch counts, for each loss. What is missing is filled in by the
            first slice, as if the others were like it.

    Attributes:
        counts: What this slice counts, for each loss.
    """

    def __init__(self, share: float | None, totals: dict[int, Any]) -> None:
        self._share = share
        self._totals = totals
        self.counts: dict[int, Any] = {}

    def loss(self, original: Callable[..., Any], given: Any, count: Any, rest: Any) -> Any:
        """A loss as this slice should have it."""
        number = len(self.counts)
        self.counts[number] = count
        if self._share is None and number not in self._totals:
            return original(*given, _MEAN, *rest)
        share = 1.0 if self._share is None else self._share
        if number not in self._totals:
            self._totals[number] = torch.clamp(count / share, min=1.0)
        # Not a mean times something: nothing may count in a slice, and a mean is 0 / 0 then.
        made = original(*given, _SUM, *rest)
        total = torch.as_tensor(self._totals[number], dtype=made.dtype, device=made.device)
        return made / (total * share)


@contextlib.contextmanager
def counting(counted: Counted) -> Iterator[Counted]:
    """Have the losses of what runs inside counted."""
    make = functools.partial(_counted, counted)
    with (
        patches.replaced(TORCH_LOSSES, "cross_entropy_loss", make),
        patches.replaced(TORCH_LOSSES, "nll_loss_nd", make),
    ):
        yield counted


def _counted(counted: Counted, original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def loss(*args: Any, **kwargs: Any) -> Any:
        if len(args) < 5 or kwargs or args[3] != _MEAN:
            return original(*args, **kwargs)
        if type(args[0]) is not torch.Tensor:  # a compiler looks at the step: there is no number
            return original(*args)
        scores, target, weight, _, ignored, *rest = args
        if target.is_floating_point():  # probabilities: divided by the number of samples
            return original(*args)
        count = _count(target, weight, ignored)
        return counted.loss(original, (scores, target, weight), count, (ignored, *rest))

    return loss


@torch.no_grad()
def _count(target: Any, weight: Any, ignored: int) -> Any:
    """What a mean is divided by."""
    counts = target != ignored
    if weight is None:
        return counts.sum().float()
    return (weight[torch.where(counts, target, 0)] * counts).sum().float()
