"""Losses of a slice, scaled so that the slices add up to the loss of the whole batch.

The slices of a batch are weighted by their share of its samples, and those weights sum to one: a
mean over samples comes out right, and so does what does not depend on the batch at all, like a
regularizer, which then counts once. Two kinds of terms need a correction inside the slice: sums,
and means over something else than samples (Keras divides a masked loss by its valid entries).
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras import ops, tree
from keras.src.losses import loss as loss_module

from legroom.backends import patches
from legroom.backends.parts import LAYER, LOSS_SCALE_OPTIMIZER, LOSSES

__all__ = ["Scale", "scaling"]

_MEANS = ("sum_over_batch_size", "mean", "mean_with_sample_weight")


class Scale:
    """Corrects the loss terms of one slice, in the order in which the step computes them.

    Args:
        share: The slice's part of the batch's samples, as a tensor; None for a whole batch.
        rules: For each term "sum" or "mean"; terms past the end are told by their reduction.
        totals: The denominators of the whole batch, for each term that counts its own.

    Attributes:
        values: Each term's value, before correction.
        names: What each term is called.
        counts: The denominators of this slice, for each term that counts its own.
        weighted: Optimizers whose loss has the slice's share in it already, by identity.
    """

    def __init__(
        self,
        share: Any = None,
        rules: Sequence[str | None] = (),
        totals: dict[int, Any] | None = None,
    ) -> None:
        self._share = share
        self._rules = rules
        self._totals = totals or {}
        self.values: list[Any] = []
        self.names: list[str] = []
        self.counts: dict[int, Any] = {}
        self.weighted: set[int] = set()

    def weigh(self, loss: Any, optimizer: Any) -> Any:
        """Put the slice's share into a loss that is scaled for half precision.

        The gradients of a slice's own mean are larger than those of the batch's, by as much as the
        batch is larger, and half precision overflows where the whole batch would not.
        """
        if self._share is None:
            return loss
        self.weighted.add(id(optimizer))
        return loss * ops.cast(self._share, loss.dtype)

    def correct(self, value: Any, name: str, *, rule: str | None, count: Any = None) -> Any:
        """Note a loss term and return it as this slice should have it."""
        term = len(self.values)
        self.values.append(value)
        self.names.append(name)
        if count is not None:
            self.counts[term] = count
        if self._share is None:
            return value
        if count is not None and term in self._totals:
            part = ops.divide_no_nan(count, ops.cast(self._totals[term], count.dtype))
            return value * ops.cast(part / ops.cast(self._share, part.dtype), value.dtype)
        if term < len(self._rules) and self._rules[term] is not None:
            rule = self._rules[term]
        return value / ops.cast(self._share, value.dtype) if rule == "sum" else value


class _Active(threading.local):
    scale: Scale | None = None
    unscaled: bool = False
    loss_name: str = "loss"


_active = _Active()


@contextlib.contextmanager
def scaling(scale: Scale, *, unscaled: bool = False) -> Iterator[Scale]:
    """Let a scale correct all loss terms that this thread computes.

    Args:
        scale: The scale.
        unscaled: Leave out what an optimizer scales losses by for half precision: the gradients
            are only looked at, and those that overflow tell nothing.
    """
    _patch()
    before = _active.scale, _active.unscaled
    _active.scale, _active.unscaled = scale, unscaled
    try:
        yield scale
    finally:
        _active.scale, _active.unscaled = before


def _patch() -> None:
    if not patches.has(__name__):
        patches.put(__name__, LOSSES, "reduce_weighted_values", _reduction)
        patches.put(__name__, f"{LOSSES}:Loss", "__call__", _naming)
        patches.put(__name__, LAYER, "add_loss", _adding)
        patches.put(__name__, LOSS_SCALE_OPTIMIZER, "scale_loss", _scaled)


def _reduction(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def reduce(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str | None = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        result = original(values, sample_weight, mask, reduction, dtype)
        scale = _active.scale
        if scale is None:
            return result
        # A value that is no scalar before and after (reduction None) is summed by the gradient:
        # that is for the step's own rule to say. A loss that is a scalar already has hidden how
        # it was reduced: calibration tells.
        rule = "sum" if reduction == "sum" and len(values.shape) > 0 else None
        return scale.correct(
            result,
            _active.loss_name,
            rule=rule,
            count=_count(sample_weight, mask, reduction, result.dtype),
        )

    return reduce


def _count(sample_weight: Any, mask: Any, reduction: str | None, dtype: Any) -> Any:
    """What Keras divides by, where that is not the number of samples."""
    if reduction not in _MEANS:
        return None
    if reduction == "mean_with_sample_weight":
        weights = loss_module.apply_mask(
            None if sample_weight is None else ops.convert_to_tensor(sample_weight, dtype=dtype),
            None if mask is None else ops.convert_to_tensor(mask, dtype=dtype),
            dtype=dtype,
            reduction=reduction,
        )
        return None if weights is None else ops.sum(ops.cast(weights, dtype))
    return None if mask is None else ops.sum(ops.cast(mask, dtype))


def _naming(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        before, _active.loss_name = _active.loss_name, self.name
        try:
            return original(self, *args, **kwargs)
        finally:
            _active.loss_name = before

    return call


def _scaled(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale_loss(self: Any, loss: Any) -> Any:
        scale = _active.scale
        weighed = loss if scale is None else scale.weigh(loss, self)
        return weighed if _active.unscaled else original(self, weighed)

    return scale_loss


def _adding(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def add_loss(self: Any, loss: Any) -> Any:
        scale = _active.scale
        if scale is not None:
            loss = tree.map_structure(
                lambda x: (
                    scale.correct(x, f"add_loss of {self.name}", rule=None)
                    if ops.is_tensor(x)
                    else x
                ),
                loss,
            )
        return original(self, loss)

    return add_loss
