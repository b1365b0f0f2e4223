"""Tensors without memory: PyTorch's fake ones, for models that are asked about and not trained."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["Imagined", "imagining", "same_seeds", "swapped", "without_memory"]

_aten = torch.ops.aten
_DEVICE = torch.ops.prim.device.default
_LOOKS = (_aten._local_scalar_dense.default, _aten.is_nonzero.default, _aten.equal.default)
# What is answered to whoever looks at a value, which nobody knows. Seeds, rates and losses are
# looked at to hand them on; a truth, mostly to see that numbers are finite.
_ANSWERS: dict[type, Any] = {bool: True, int: 1, float: 1e-3, complex: 1e-3 + 0j}


class Imagined(TorchDispatchMode):
    """Answers those who look at values, which fake tensors do not have.

    Args:
        fake: Whether tensors are fake ones; real ones are looked at.

    Attributes:
        guessed: Whether a truth was asked for, on which the way of the step may depend.
    """

    def __init__(self, *, fake: bool = True) -> None:
        super().__init__()
        self._fake = fake
        self.guessed = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Answer, or have the op run."""
        if func is _DEVICE and isinstance(args[0], FakeTensor):
            return args[0].fake_device  # asked for at every turn: two of three calls are this one
        if self._fake and func in _LOOKS:
            known = getattr(args[0], "constant", None)
            if func is _LOOKS[0] and known is not None:
                return known.item()  # a number of the code's own, and what is counted from it
            kind = _kind(args[0].dtype) if func is _LOOKS[0] else bool
            self.guessed = self.guessed or kind is bool
            return _ANSWERS[kind]
        return func(*args, **(kwargs or {}))


def _kind(dtype: torch.dtype) -> type:
    if dtype is torch.bool:
        return bool
    if dtype.is_complex:
        return complex
    return float if dtype.is_floating_point else int


@contextlib.contextmanager
def imagining() -> Iterator[None]:
    """Have all tensors that are made inside be fake ones; real ones count as such."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


@contextlib.contextmanager
def without_memory() -> Iterator[None]:
    """Give models that are made inside no memory."""
    with same_seeds(), imagining(), Imagined():
        yield


@contextlib.contextmanager
def same_seeds() -> Iterator[None]:
    """PyTorch's own generators as they were."""
    cpu = torch.get_rng_state()
    cards = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        if cards:
            torch.cuda.set_rng_state_all(cards)


@contextlib.contextmanager
def swapped(
    variables: Iterable[Any],
    modules: Iterable[torch.nn.Module],
    groups: Iterable[list[Any]] = (),
) -> Iterator[dict[int, Any]]:
    """Put fake tensors in the places of real ones; yields them by the ids of the real ones.

    Args:
        variables: Variables of Keras.
        modules: Modules, those inside of others included.
        groups: Lists of parameters, as optimizers of PyTorch have them.
    """
    fakes: dict[int, Any] = {}
    undo: list[Callable[[], None]] = []
    kept: list[Any] = []

    def fake(real: Any) -> Any:
        if id(real) not in fakes:
            fakes[id(real)] = _fake(real)
            kept.append(real)  # so that no other has its id
        return fakes[id(real)]

    try:
        for variable in variables:
            if variable._value is not None:
                undo.append(_setting(vars(variable), "_value", fake(variable._value)))
        for module in modules:
            for table in (module._parameters, module._buffers):
                for name, value in list(table.items()):
                    if value is not None:
                        undo.append(_setting(table, name, fake(value)))
        for group in groups:
            for place, value in enumerate(group):
                undo.append(_setting(group, place, fake(value)))
        yield fakes
    finally:
        for put_back in reversed(undo):
            put_back()


def _setting(table: Any, name: Any, value: Any) -> Callable[[], None]:
    """Set an entry; returns what puts the old one back."""
    before = table[name]
    table[name] = value

    def put_back() -> None:
        table[name] = before

    return put_back


def _fake(real: Any) -> Any:
    size, stride = tuple(real.shape), real.stride()
    made = torch.empty_strided(size, stride, dtype=real.dtype, device=real.device)
    if isinstance(real, torch.nn.Parameter):
        return torch.nn.Parameter(made, requires_grad=real.requires_grad)
    return made
