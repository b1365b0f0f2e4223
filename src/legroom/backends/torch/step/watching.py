"""What a step does while it runs: its backward passes, its updates, its clearing of gradients.

A step is Python, run once for each slice. So that its slices make up one update, their losses are
weighted as they go backward, `.grad` adds up in place, gradients are not cleared in between, and
the optimizer moves once, in the last slice. A slice that is not the last one ends where its last
`backward()` returns, or, with an optimizer of Keras, runs on without it: what comes behind are
metrics there.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import pkgutil
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from legroom.backends import patches
from legroom.backends.parts import (
    OPTIMIZER,
    TORCH_AUTOGRAD,
    TORCH_MODULE,
    TORCH_OPTIMIZER,
    TORCH_SCALER,
)

__all__ = ["OtherCourse", "SliceEnd", "Watch", "is_watched", "watched_briefly", "watching"]


# The replacements in Keras, which a plain training does without.
_KERAS = f"{__name__} in Keras"


class SliceEnd(BaseException):
    """A slice is through: what follows is the last one's to do."""


class OtherCourse(BaseException):
    """A slice does something else than the samples did on which the step was tried.

    Args:
        what: What that is, as the reason for which a batch can't be sliced.
        always: Whether it is likely to be so with other batches, too.
    """

    def __init__(self, what: str, *, always: bool = False) -> None:
        super().__init__(what)
        self.what, self.always = what, always


class Watch:
    """How the step that runs now is to be run.

    Args:
        share: What its losses are weighted by.
        first: Whether it is the first slice of its batch, or a whole batch.
        last: Whether it is the last slice, or a whole batch.
        made: Backward passes that are left out: their update was made before, or only what comes
            before them is wanted.
        ends: The backward passes with which updates have all their gradients; a slice that is not
            the last one ends with the last of them. Empty where that is not known.
        on_update: Called before an optimizer moves, with it.
        on_backward: Called before each backward pass that is made.
        on_end: Called after each of `ends`, with this and it. (With this, so that it need not hold
            it: a circle would keep the batch until the collector comes.)
        on_trial: Called instead of an update of Keras, with optimizer, gradients and variables.

    Attributes:
        count: The backward passes so far.
        losses: What went backward: tensors and their values, unweighted.
        cleared: Whether gradients were cleared before the first backward pass.
        updated: How many updates there were.
        scaled: Losses scaled for half precision: by whom, what was given, what was made of it.
    """

    def __init__(
        self,
        *,
        share: Callable[[], float] = lambda: 1.0,
        first: bool = True,
        last: bool = True,
        made: int = 0,
        ends: Sequence[int] = (),
        on_update: Callable[[Any], None] = lambda optimizer: None,
        on_backward: Callable[[], None] = lambda: None,
        on_end: Callable[[Watch, int], None] = lambda watch, passes: None,
        on_trial: Callable[[Any, Any, Any], None] | None = None,
    ) -> None:
        self.share = share
        self._first, self._last = first, last
        self._made = made
        self._ends = ends
        self._on_update = on_update
        self._on_backward = on_backward
        self._on_end = on_end
        self._on_trial = on_trial
        self.count = 0
        self.losses: list[tuple[Any, Any]] = []
        self.cleared = False
        self.updated = 0
        self.scaled: list[tuple[Any, Any, Any]] = []

    def backward(
        self, original: Callable[..., Any], tensors: Any, gradients: Any, rest: Any
    ) -> None:
        """Go backward, weighted."""
        args, kwargs = rest
        if self.count < self._made:
            self.count += 1
            if not self._last and self.count == self._ends[-1]:
                raise SliceEnd
            return
        if self._ends and self.count >= self._ends[-1]:
            raise OtherCourse(
                "it calls backward() more often than it did on the few samples it was tried on",
                always=True,
            )
        self._on_backward()
        flat = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        if (share := self.share()) != 1.0:
            gradients = _weighted(flat, gradients, share)
        original(tensors, gradients, *args, **kwargs)
        if not (self._first and self._last):
            self.losses += [(x, x.detach().clone()) for x in flat if x.numel() == 1]
        self.count += 1
        if self.count in self._ends:
            self._on_end(self, self.count)
            if not self._last and self.count == self._ends[-1]:
                raise SliceEnd

    def clear(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Clear gradients, unless those of earlier slices are in them."""
        begun = self._ends and self.count >= self._ends[0]  # the last slice, behind an update
        if self._made or not (self._first or begun):
            return None
        self.cleared = self.cleared or self.count == 0
        return original(*args, **kwargs)

    def before_update(self, optimizer: Any) -> None:
        """An optimizer of PyTorch is about to move."""
        self.updated += 1
        if self._ends and self.count not in self._ends:
            raise OtherCourse(
                "its optimizer moves at another place than it did on the few samples it was tried "
                "on",
                always=True,
            )
        self._on_update(optimizer)

    def apply(self, original: Callable[..., Any], optimizer: Any, given: Any) -> Any:
        """An optimizer of Keras is about to move."""
        args, kwargs = given
        self.updated += 1
        if self._on_trial is not None:
            gradients = kwargs.get("grads", args[0] if args else None)
            variables = kwargs.get("trainable_variables", args[1] if len(args) > 1 else None)
            return self._on_trial(optimizer, gradients, variables)
        if not self._last:
            return None
        variables = kwargs.get("trainable_variables", args[1] if len(args) > 1 else None)
        if variables and not optimizer.built:
            optimizer.build(variables)  # as it would itself: its slots are there to be kept then
        self._on_update(optimizer)
        with _alone():  # it may call another's
            return original(optimizer, *args, **kwargs)


class _Here(threading.local):
    watch: Watch | None = None


_here = _Here()


@contextlib.contextmanager
def watching(watch: Watch) -> Iterator[Watch]:
    """Have what runs inside watched."""
    _patch()
    before, _here.watch = _here.watch, watch
    try:
        yield watch
    finally:
        _here.watch = before


@contextlib.contextmanager
def watched_briefly() -> Iterator[None]:
    """Have `watching` leave nothing behind where legroom guards nothing in this process."""
    guarded = patches.has(__name__)
    try:
        yield
    finally:
        if not guarded:
            patches.take_off(__name__)
            patches.take_off(_KERAS)
            _patched.clear()


def is_watched() -> bool:
    """Whether what runs now in this thread is part of a guarded step."""
    return _here.watch is not None


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    before, _here.watch = _here.watch, None
    try:
        yield
    finally:
        _here.watch = before


def _patch() -> None:
    if not patches.has(_KERAS):
        _patched.clear()
    _patch_keras()
    if patches.has(__name__):
        return
    patches.put(__name__, TORCH_AUTOGRAD, "backward", _backward)
    patches.put(__name__, TORCH_MODULE, "zero_grad", _clearing)
    patches.put(__name__, TORCH_OPTIMIZER, "zero_grad", _clearing)
    patches.put(__name__, TORCH_SCALER, "scale", _scaling)
    global _hook
    if _hook is not None:
        _hook.remove()
    _hook = register_optimizer_step_pre_hook(_before_step)
    patches.at_removal(_hook.remove)


_patched: weakref.WeakSet[type] = weakref.WeakSet()
_hook: Any = None


def _patch_keras() -> None:
    """Be called wherever a class has an `apply` of its own, also in classes made by now."""
    keras = sys.modules.get("keras")
    if keras is None:
        return
    kinds = [pkgutil.resolve_name(OPTIMIZER)]
    for kind in kinds:
        kinds += kind.__subclasses__()
        if kind not in _patched:
            _patched.add(kind)
            if inspect.isfunction(vars(kind).get("apply")):
                patches.put(_KERAS, OPTIMIZER, "apply", _applying, on=kind)


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        watch = _here.watch
        if watch is None:
            return original(tensors, grad_tensors, *args, **kwargs)
        return watch.backward(original, tensors, grad_tensors, (args, kwargs))

    return backward


def _clearing(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def zero_grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _here.watch
        if watch is None:
            return original(self, *args, **kwargs)
        return watch.clear(original, self, *args, **kwargs)

    return zero_grad


def _applying(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
        watch = _here.watch
        if watch is None:
            return original(self, *args, **kwargs)
        return watch.apply(original, self, (args, kwargs))

    return apply


def _scaling(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(self: Any, outputs: Any) -> Any:
        made = original(self, outputs)
        if _here.watch is not None and made is not outputs and isinstance(outputs, torch.Tensor):
            _here.watch.scaled.append((self, outputs, made))
        return made

    return scale


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    watch = _here.watch
    if watch is not None:
        watch.before_update(optimizer)


def _weighted(tensors: Sequence[Any], gradients: Any, share: float) -> Any:
    """What is handed to `backward`, times a share."""
    if gradients is None:
        made = [torch.full_like(x, share) for x in tensors]
    else:
        flat = [gradients] if isinstance(gradients, torch.Tensor) else list(gradients)
        made = [
            torch.full_like(x, share) if g is None else g * share
            for x, g in zip(tensors, flat, strict=True)
        ]
    return made[0] if len(made) == 1 else made
