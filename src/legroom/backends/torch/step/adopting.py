"""Modules that a step runs, and that were not seen in its code: they take part, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from legroom.backends.torch.step.participants import Participants, PlainLoop

__all__ = ["adopting"]


@contextlib.contextmanager
def adopting(parts: Participants) -> Iterator[None]:
    """Have modules take part from now on that are found to run inside; what they change is undone.

    Args:
        parts: Who takes part already.
    """
    if not isinstance(parts, PlainLoop):
        yield
        return
    known = {id(inner) for module in parts.modules for inner in module.modules()}
    found: list[Any] = []
    before: list[tuple[Any, Any]] = []
    gradients: list[tuple[Any, Any]] = []

    def look(module: Any, args: Any) -> None:
        if id(module) in known:
            return
        inside = list(module.modules())
        known.update(map(id, inside))
        if any(True for x in (*module.parameters(), *module.buffers())):
            found.append(module)
            before.extend((x, x.detach().clone()) for x in module.buffers())
            gradients.extend((x, x.grad) for x in module.parameters())

    hook = register_module_forward_pre_hook(look)
    try:
        yield
    finally:
        hook.remove()
        with torch.no_grad():
            for buffer, value in before:
                buffer.copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        parts.adopt(found)
