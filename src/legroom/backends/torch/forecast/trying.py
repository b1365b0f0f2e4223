"""Real steps of a model, run to see whether they fit, with everything put back afterwards."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from legroom.backends.torch.device import errors
from legroom.backends.torch.device.pool import default_device, pool_of
from legroom.backends.torch.forecast.keras_step import (
    batch_of,
    batch_specs,
    run_method,
    untouched,
    variables_of,
)
from legroom.backends.torch.forecast.recorder import Recorder, TooMuch
from legroom.core.errors import LegroomError

__all__ = ["runs_within"]

# The first makes the gradients that the second begins with.
_STEPS = 2


def runs_within(
    model: Any,
    samples: int,
    limit: int,
    *,
    on_card: bool,
    method: str,
    data: Any,
    length: int | None,
) -> bool:
    """Run a model's steps, and tell whether they stay within a limit.

    On a GPU its allocator is limited meanwhile; that is not verified on one yet. On a CPU what is
    allocated is counted, and the step ends where it is too much.

    Args:
        model: The model. Its values, and all that the steps change, are put back.
        samples: The batch size.
        limit: The bytes there are.
        on_card: Whether the steps run on a GPU.
        method: As for `record_model`.
        data: As for `record_model`.
        length: As for `record_model`.

    Raises:
        LegroomError: If the step fails for another reason.
    """
    tensors = _tensors(model)
    if any(isinstance(tensor, FakeTensor) for tensor in tensors):
        raise LegroomError(f"{model.name!r} has no memory: it can be asked about, not tried.")
    held = sum(tensor.nbytes for tensor in tensors)
    failed: Exception | None = None
    for batch in batch_specs(model, method, data, length):
        capped = _capped(limit, held) if on_card else contextlib.nullcontext()
        recorder = Recorder(fake=False, limit=None if on_card else limit)
        counted = contextlib.nullcontext() if on_card else recorder
        with untouched(model), _values_kept(model, tensors), capped:
            try:
                with counted:
                    for tensor in () if on_card else tensors:
                        recorder.see(tensor)
                    model.train(method == "fit")
                    for _ in range(_STEPS):
                        run_method(model, method, batch_of(batch, samples))
                return True
            except TooMuch:
                return False
            except Exception as error:
                if errors.is_oom(error) or _is_too_much(error):
                    return False
                failed = failed or error
    raise LegroomError(
        f"A step of {model.name!r} could not be tried: {' '.join(str(failed).split())[:300]}"
    ) from failed


def _is_too_much(error: BaseException | None) -> bool:
    """Whether the limit is behind an error: Keras raises another one for it."""
    while error is not None:
        if isinstance(error, TooMuch):
            return True
        error = error.__cause__ or error.__context__
    return False


def _tensors(model: Any) -> list[Any]:
    """All that a model and its optimizer keep."""
    found = [v._value for v in variables_of(model) if v._value is not None]
    found += [*model.parameters(), *model.buffers()]
    return list({id(tensor): tensor for tensor in found}.values())


@contextlib.contextmanager
def _values_kept(model: Any, tensors: list[Any]) -> Iterator[None]:
    """Put back the values of tensors, and the gradients that there are."""
    values = [tensor.detach().to("cpu", copy=True) for tensor in tensors]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in zip(tensors, values, strict=True):
                tensor.copy_(value)
        gc.collect()
        pool_of(default_device()).forget_cached()


@contextlib.contextmanager
def _capped(limit: int, held: int) -> Iterator[None]:
    """Limit what a GPU's allocator takes, beside what others in this process have of it."""
    device = default_device()
    total = torch.cuda.get_device_properties(device).total_memory
    others = max(0, torch.cuda.memory_allocated(device) - held)
    before = pool_of(device).read_device().allocator_bytes or total
    torch.cuda.empty_cache()
    wanted = min(before, limit + others)
    torch.cuda.set_per_process_memory_fraction(min(1.0, wanted / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(min(1.0, before / total), device)
