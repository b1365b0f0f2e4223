"""A training step in plain PyTorch, run on trial on fake tensors."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from legroom.backends.keras.slices.python_state import PythonState
from legroom.backends.torch.forecast.fakes import imagining, same_seeds, swapped
from legroom.backends.torch.forecast.recorder import Recorder
from legroom.backends.torch.forecast.script import RECORDED_SIZE, Script
from legroom.backends.torch.step import batch
from legroom.backends.torch.step.participants import PlainLoop
from legroom.core.errors import LegroomError, UnsupportedModelError

__all__ = ["is_step", "record_function"]


def is_step(thing: Any) -> bool:
    """Whether it is a function, guarded or not, and no module."""
    plain = inspect.unwrap(thing) if callable(thing) else thing
    return inspect.isroutine(plain) and not isinstance(thing, torch.nn.Module)


def record_function(function: Any, data: Any, *, card: bool = False) -> Script:
    """Run a step twice on tensors without memory, and record what the second time takes.

    Args:
        function: The step. Nothing that it changes of modules, optimizers and plain values that it
            can reach stays changed.
        data: What it is called with: arrays or tensors, of any batch size.
        card: As for `Recorder`.

    Raises:
        UnsupportedModelError: If nothing tells what it is called with, or it trains nothing.
        LegroomError: If the step can't be run on tensors without values.
    """
    function = inspect.unwrap(function)
    name = getattr(function, "__name__", "the step")
    if data is None:
        raise UnsupportedModelError(
            f"What {name} is called with is not known. Show one batch: data=(x, y), as tensors."
        )
    loop = PlainLoop(function, [])
    if not loop.modules or not loop.optimizers:
        raise UnsupportedModelError(
            f"{name} reaches no torch.nn.Module, or no optimizer: there is no training step to ask "
            "about."
        )
    given = data if isinstance(data, tuple) else (data,)
    state, put_back = PythonState(function), loop.numbers_as_now()
    gradients = [(parameter, parameter.grad) for parameter in loop.parameters()]
    groups = [group["params"] for one in loop.optimizers for group in one.param_groups]
    inner = list({id(x): x for module in loop.modules for x in module.modules()}.values())
    try:
        with same_seeds(), imagining(), swapped((), inner, groups):
            return _record(Recorder(card=card), function, loop, inner, given)
    except Exception as error:
        words = " ".join(str(error).split())[:300]
        raise LegroomError(f"{name} can't be run on tensors without values: {words}") from error
    finally:
        put_back()
        state.restore()
        for parameter, gradient in gradients:
            parameter.grad = gradient


def _record(
    recorder: Recorder, function: Any, loop: PlainLoop, inner: Sequence[Any], given: Any
) -> Script:
    names = loop.names()
    owners = {
        id(tensor): names.get(id(module), "")
        for module in inner
        for tensor in [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    }
    with recorder, _layers_told(recorder, inner, names), _updates_told(recorder, owners):
        for module in inner:
            held = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
            for tensor in held:
                tensor.grad = None
                recorder.see(tensor)
            recorder.mark(held, "weights", [owners[id(tensor)] for tensor in held])
        for rehearsal in (True, False):
            if not rehearsal:
                recorder.begin_step()
            recorder.purpose = "input"
            batch_now = batch.map_leaves(_input, given)
            recorder.purpose = "activations"
            function(*batch_now)
            del batch_now
    return recorder.script(rehearsed=True)


def _input(leaf: Any) -> Any:
    """A leaf of a batch, with as many samples as are recorded."""
    if batch.leading(leaf) is None:
        return leaf
    tensor = torch.as_tensor(leaf)
    return torch.zeros((RECORDED_SIZE, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)


@contextlib.contextmanager
def _layers_told(
    recorder: Recorder, modules: Sequence[Any], names: dict[int, str]
) -> Iterator[None]:
    def enter(module: Any, args: Any) -> None:
        recorder.enter(names.get(id(module), ""))

    def leave(module: Any, args: Any, outputs: Any) -> None:
        recorder.leave()

    with contextlib.ExitStack() as hooks:
        for module in modules:
            hooks.callback(module.register_forward_pre_hook(enter).remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        yield


@contextlib.contextmanager
def _updates_told(recorder: Recorder, owners: dict[int, str]) -> Iterator[None]:
    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        moved = [p for p in weights if p.grad is not None]
        recorder.mark([p.grad for p in moved], "gradients", [owners.get(id(p), "") for p in moved])
        recorder.purpose = "workspace"

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        slots = [x for kept in optimizer.state.values() for x in kept.values()]
        recorder.mark([x for x in slots if isinstance(x, torch.Tensor)], "optimizer")
        recorder.purpose = "activations"

    hooks = register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
