"""Random numbers of a step: held still to compare it, and cut to the rows of a slice.

On a CPU, most draws come from a generator one number after the other, in the order in which a
tensor lies in memory. So the rows of a slice are drawn where those of the slice before ended, and
are those that the whole batch would have drawn. Others are drawn for the whole batch, and cut. On a
GPU layers that draw are named.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.backends.keras.slices import rules, runs

__all__ = ["Draw", "Rows", "Still", "draws_of"]

_DROPOUT = torch.ops.aten.native_dropout.default
# What is drawn number after number, whatever the size of a draw; of these types.
_IN_ORDER = ("bernoulli", "bernoulli_", "rand", "rand_like", "uniform_")
_ORDERLY_TYPES = (torch.float32, torch.float64)
# What can be drawn for a whole batch without its data: by a shape, or into a tensor.
_BY_SHAPE = ("rand", "randn", "rand_like", "randn_like", "randint", "randint_like", "normal",
             "uniform_", "normal_", "bernoulli_", "random_", "exponential_")  # fmt: skip
_BY_VALUE = ("normal", "bernoulli")  # whose numbers may depend on tensors
_NORMAL = ("normal", "normal_", "randn", "randn_like")
_WHOLE = ("randint", "randint_like", "random_")
_NEUTRAL = (*_IN_ORDER, *_NORMAL, *_WHOLE, "exponential_")
_COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd


@dataclasses.dataclass(frozen=True)
class _Drawn(runs.Drawn):
    """One random draw, as it was seen.

    Attributes:
        order: Its axes, as they lie in memory: that with the longest steps first.
    """

    order: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Draw(rules.Draw):
    """A random draw of a step, for batches of any size.

    Its way is "same" in all slices; "rows": each goes on where the one before ended; "cut" from the
    whole batch's; "apart": other numbers than the whole batch would have drawn.

    Attributes:
        axis: The axis of the samples.
        each: Its length for one sample.
        order: Its axes, as they lie in memory.
    """

    axis: int = 0
    each: int = 1
    order: tuple[int, ...] = ()


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _name(func: Any) -> str:
    return str(func.overloadpacket._qualified_op_name).partition("::")[2]


def _is_composite(func: Any) -> bool:
    """Whether it is made of others, and comes as one only where nothing is to be differentiated."""
    return bool(func.has_kernel_for_dispatch_key(_COMPOSITE))


@functools.cache
def _place_of_dropout(func: Any) -> int | None:
    """Where an op takes the share that it drops, as fused attention and its gradient do."""
    names = [one.name for one in func._schema.arguments]
    return names.index("dropout_p") if "dropout_p" in names else None


def _without_dropout(func: Any, args: Any, kwargs: Any) -> tuple[Any, dict[str, Any], bool]:
    """The arguments of an op that has dropout within, without it; whether there was any."""
    place = _place_of_dropout(func)
    if place is None:
        return args, kwargs, False
    if place < len(args):
        return [*args[:place], 0.0, *args[place + 1 :]], kwargs, bool(args[place])
    return args, {**kwargs, "dropout_p": 0.0}, bool(kwargs.get("dropout_p"))


class Still(TorchDispatchMode):
    """Draws that depend on the place within a sample only, or on the sample too.

    Args:
        draws: Where the draws of slices are rows of the whole batch's, as `draws_of` found them, so
            that each sample is to have its own; nothing for the same noise for all.
        start: How many samples of the batch come before these.

    Attributes:
        draws: Every random draw, in order.
        halves: Whether anything was computed in half precision.
    """

    def __init__(self, draws: Sequence[rules.Draw] = (), *, start: int = 0) -> None:
        super().__init__()
        self._known = [draw for draw in draws if isinstance(draw, Draw)]
        self._start = start
        self.draws: list[runs.Drawn] = []
        self.halves = False
        self._count = 0

    @property
    def place(self) -> tuple[int, int]:
        """As of `Rows`: how many draws the present slice has made."""
        return 0, self._count

    def go_to(self, number: int, count: int = 0) -> None:
        """As of `Rows`: another slice begins, or one comes back to where it was."""
        self._count = count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op; where it draws, with neutral numbers."""
        kwargs = dict(kwargs or {})
        if not _draws(func):
            args, kwargs, _ = _without_dropout(func, args, kwargs)
            made = func(*args, **kwargs)
            if isinstance(made, torch.Tensor) and made.dtype in (torch.float16, torch.bfloat16):
                self.halves = True
            return made
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        name = _name(func)
        args, kwargs, had_dropout = _without_dropout(func, args, kwargs)
        if func is _DROPOUT:
            self._note(name, args[0], "")
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        made = func(*args, **kwargs)
        if not isinstance(made, torch.Tensor):
            if had_dropout:
                self._note(name, next(x for x in made if isinstance(x, torch.Tensor)), "")
            return made
        self._note(name, made, "" if made.dtype in _ORDERLY_TYPES else str(made.dtype))
        if name in _NEUTRAL and made.dim():
            made.copy_(self._numbers(name, made, args, kwargs).expand(made.shape))
        return made

    def _note(self, name: str, made: Any, kind: str) -> None:
        self._count += 1
        strides = made.stride()
        order = sorted(range(made.dim()), key=lambda axis: -strides[axis])
        self.draws.append(_Drawn(name, tuple(made.shape), kind, tuple(order)))

    def _numbers(self, name: str, made: Any, args: Any, kwargs: Any) -> Any:
        """Numbers like those of a draw: for one sample, or for each of these."""
        source = np.random.RandomState(self._count)  # numbers come one after the other
        draw = source.standard_normal if name in _NORMAL else source.random_sample
        known = self._known[self._count - 1] if self._count <= len(self._known) else None
        if known is not None and known.way in ("rows", "cut"):
            # Each sample has its own.
            shape, before = list(made.shape), self._start * known.each
            rest = [n for axis, n in enumerate(shape) if axis != known.axis]
            drawn = draw((before + shape[known.axis], *rest))[before:]
            numbers = torch.as_tensor(np.moveaxis(drawn, 0, known.axis).copy())
        else:
            # The samples may be along the first axis, or along the second one.
            shape = list(made.shape[1:]) if made.dim() == 2 else list(made.shape[2:])
            numbers = torch.as_tensor(draw(shape))
            if numbers.numel() == 1 and name.startswith("bernoulli"):
                numbers = torch.zeros(())  # not everything may be dropped
        numbers = numbers.to(made.device)
        if name in _NORMAL:
            return numbers
        if name == "exponential_":
            return -torch.log1p(-numbers) / float(args[1] if len(args) > 1 else 1.0)
        if name in _WHOLE:
            given = [x for x in args if isinstance(x, int)] or [2]
            low, high = (0, given[0]) if len(given) == 1 else (given[0], given[1])
            return low + (numbers * (high - low)).floor()
        if not name.startswith("bernoulli"):
            least, most = (float(x) for x in args[1:3]) if len(args) > 2 else (0.0, 1.0)
            return least + numbers * (most - least)
        share = args[0] if name == "bernoulli" else (*args[1:2], kwargs.get("p", 0.5))[0]
        share = float(share.float().mean()) if isinstance(share, torch.Tensor) else float(share)
        return (numbers < share).to(made.dtype)


def draws_of(
    whole: Sequence[runs.Drawn], parts: Sequence[Sequence[runs.Drawn]], sizes: Sequence[int]
) -> list[Draw]:
    """For each draw of a step how slices draw it.

    Args:
        whole: What was drawn for all samples at once.
        parts: What the slices drew.
        sizes: The samples in each slice.
    """
    if any(len(part) != len(whole) for part in parts):
        return [Draw("", (), (), "", "apart")]
    return [_draw_of(drawn, [part[k] for part in parts], sizes) for k, drawn in enumerate(whole)]


def _draw_of(whole: runs.Drawn, parts: Sequence[runs.Drawn], sizes: Sequence[int]) -> Draw:
    draw = Draw(whole.op, whole.shape, (), "", "apart", order=getattr(whole, "order", ()))
    if all(part.shape == whole.shape for part in parts):
        return dataclasses.replace(draw, way="same")
    axis = next(
        (a for a in range(len(whole.shape)) if _is_of_samples(a, whole, parts, sizes)), None
    )
    if axis is None:
        return draw
    draw = dataclasses.replace(draw, axis=axis, each=whole.shape[axis] // sum(sizes))
    if draw.order[:1] == (axis,) and not whole.scope and _is_in_order(whole.op):
        return dataclasses.replace(draw, way="rows")
    natural = draw.order == tuple(range(len(whole.shape)))
    if whole.op in _BY_SHAPE and (natural or whole.op not in _BY_VALUE):
        return dataclasses.replace(draw, way="cut")
    return draw


def _is_of_samples(
    axis: int, whole: runs.Drawn, parts: Sequence[runs.Drawn], sizes: Sequence[int]
) -> bool:
    each, rest = divmod(whole.shape[axis], sum(sizes))
    shapes = [(*whole.shape[:axis], each * n, *whole.shape[axis + 1 :]) for n in sizes]
    return not rest and shapes == [part.shape for part in parts]


@functools.cache
def _is_in_order(op: str) -> bool:
    """Whether what is drawn in two parts is what is drawn at once.

    PyTorch draws zeros and ones by a library of Intel's on Intel's processors, in a way of its own.
    """
    if op != "bernoulli_":
        return op in _IN_ORDER
    drawn = []
    for sizes in ([2048], [1000, 1048]):
        generator = torch.Generator().manual_seed(0)
        drawn.append(
            torch.cat([torch.empty(n).bernoulli_(0.5, generator=generator) for n in sizes])
        )
    return torch.equal(*drawn)


class Rows(TorchDispatchMode):
    """The draws of the slices of one batch, on a CPU: those of the whole batch.

    When a draw is first come to, the numbers of all slices are drawn once, and it is kept where
    those of each begin. So slices may come in any order, and again.

    Args:
        draws: As `draws_of` found them.
        sizes: The samples in each slice.
    """

    def __init__(self, draws: Sequence[rules.Draw], sizes: Sequence[int]) -> None:
        super().__init__()
        self._draws = [draw for draw in draws if isinstance(draw, Draw)]
        self._sizes = sizes
        self._begins: list[list[torch.Tensor]] = []  # by draw and slice, where the generator is
        self._ends: list[torch.Tensor] = []
        self._count = self._slice = 0

    @property
    def place(self) -> tuple[int, int]:
        """Which slice is run, and how many draws it has made."""
        return self._slice, self._count

    def go_to(self, number: int, count: int = 0) -> None:
        """Another slice begins, or one comes back to where it was."""
        self._slice, self._count = number, count

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op; where it draws, with the rows of this slice."""
        kwargs = dict(kwargs or {})
        if not _draws(func):
            return func(*args, **kwargs)
        if _is_composite(func):
            with self:
                return func.decompose(*args, **kwargs)
        if not _counts(func, args, kwargs):
            return func(*args, **kwargs)
        place, self._count = self._count, self._count + 1
        draw = self._draws[place] if place < len(self._draws) else None
        if draw is None or draw.way == "apart":
            return func(*args, **kwargs)
        generator = kwargs.get("generator") or torch.default_generator
        if place == len(self._begins):
            self._look_ahead(draw, generator, func, args, kwargs)
        begins = self._begins[place]
        generator.set_state(begins[self._slice if draw.way == "rows" else 0])
        made = self._cut(draw, func, args, kwargs) if draw.way == "cut" else func(*args, **kwargs)
        generator.set_state(self._ends[place])
        return made

    def _look_ahead(self, draw: Draw, generator: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Draw what all slices will draw, so that the next draw begins behind it."""
        begins = [generator.get_state()]
        if draw.way == "same":
            func(*(x.clone() if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        for size in {"rows": self._sizes, "cut": [sum(self._sizes)], "same": []}[draw.way]:
            func(*(self._resized(draw, x, size) for x in args), **kwargs)
            begins.append(generator.get_state())
        self._begins.append(begins)
        self._ends.append(generator.get_state())

    def _cut(self, draw: Draw, func: Any, args: Any, kwargs: Any) -> Any:
        """The rows of this slice, of a draw for the whole batch."""
        whole = func(*(self._resized(draw, x, sum(self._sizes)) for x in args), **kwargs)
        start, here = sum(self._sizes[: self._slice]), self._sizes[self._slice]
        rows = whole.narrow(draw.axis, draw.each * start, draw.each * here)
        return args[0].copy_(rows) if _name(func).endswith("_") else rows.clone()

    def _resized(self, draw: Draw, value: Any, samples: int) -> Any:
        """An argument of a draw as it is for another number of samples; tensors are new ones.

        The rows of this slice are where they are in the whole batch.
        """
        length, wanted = draw.each * self._sizes[self._slice], draw.each * samples
        if isinstance(value, torch.Tensor):
            if value.dim() <= draw.axis or value.shape[draw.axis] != length:
                return value.clone()
            if draw.op not in _BY_VALUE:
                return _empty_like(value, draw, wanted)
            start = draw.each * sum(self._sizes[: self._slice])
            numbers = (torch.arange(wanted, device=value.device) - start) % length
            return value.index_select(draw.axis, numbers)
        if isinstance(value, (list, tuple)) and value[draw.axis : draw.axis + 1] == [length]:
            return [*value[: draw.axis], wanted, *value[draw.axis + 1 :]]
        return value


def _counts(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it is counted as a draw by `Still`, too: not if it may draw, but does not here."""
    return _place_of_dropout(func) is None or _without_dropout(func, args, kwargs)[2]


def _empty_like(value: Any, draw: Draw, wanted: int) -> Any:
    """A tensor with more samples or fewer that lies in memory as the whole batch's does."""
    shape = [wanted if axis == draw.axis else n for axis, n in enumerate(value.shape)]
    if len(draw.order) != len(shape):
        return value.new_empty(shape)
    made = value.new_empty([shape[axis] for axis in draw.order])
    return made.permute([draw.order.index(axis) for axis in range(len(shape))])
