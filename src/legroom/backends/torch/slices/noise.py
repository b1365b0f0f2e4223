"""Random numbers of a step: held still to compare it, and cut to the rows of a slice.

On a CPU, most draws come from a generator one number after the other. So the rows of a slice are
drawn where those of the slice before ended, and are those that the whole batch would have drawn.
Others are drawn for the whole batch, and cut. On a GPU layers that draw are named.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.backends.keras.slices.runs import Drawn

__all__ = ["Rows", "Still", "ways_of"]

_DROPOUT = torch.ops.aten.native_dropout.default
# What is drawn number after number, whatever the size of a draw; of these types.
_IN_ORDER = ("bernoulli", "bernoulli_", "rand", "rand_like", "uniform_")
_ORDERLY_TYPES = (torch.float32, torch.float64)
# What can be drawn for a whole batch without its data: by a shape, or into a tensor.
_BY_SHAPE = ("rand", "randn", "randint", "normal", "uniform_", "normal_", "bernoulli_", "random_")
_NORMAL = ("normal", "normal_", "randn", "randn_like")
_WHOLE = ("randint", "random_")
_NEUTRAL = (*_IN_ORDER, *_NORMAL, *_WHOLE)


def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _name(func: Any) -> str:
    return str(func.overloadpacket._qualified_op_name).partition("::")[2]


class Still(TorchDispatchMode):
    """Draws that depend on the place within a sample only, or on the sample too.

    Args:
        ways: Where the draws of slices are rows of the whole batch's, by `ways_of`, so that each
            sample is to have its own; nothing for the same noise for all.
        start: How many samples of the batch come before these.
        samples: How many these are.

    Attributes:
        draws: Every random draw, in order.
        halves: Whether anything was computed in half precision.
    """

    def __init__(self, ways: Sequence[str] = (), *, start: int = 0, samples: int = 0) -> None:
        super().__init__()
        self._ways, self._start, self._samples = ways, start, samples
        self.draws: list[Drawn] = []
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
            made = func(*args, **kwargs)
            if isinstance(made, torch.Tensor) and made.dtype in (torch.float16, torch.bfloat16):
                self.halves = True
            return made
        if "dropout_p" in kwargs:
            kwargs["dropout_p"] = 0.0
        name = _name(func)
        self._count += 1
        if func is _DROPOUT:
            self.draws.append(Drawn(name, tuple(args[0].shape), ""))
            return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
        made = func(*args, **kwargs)
        if not isinstance(made, torch.Tensor):
            return made
        orderly = made.dtype in _ORDERLY_TYPES
        self.draws.append(Drawn(name, tuple(made.shape), "" if orderly else str(made.dtype)))
        if name in _NEUTRAL and made.dim():
            made.copy_(self._numbers(name, made, args, kwargs).expand(made.shape))
        return made

    def _numbers(self, name: str, made: Any, args: Any, kwargs: Any) -> Any:
        """Numbers like those of a draw: for one sample, or for each of these."""
        source = np.random.RandomState(self._count)  # numbers come one after the other
        shape, rows = tuple(made.shape[1:]), slice(None)
        if self._ways[self._count - 1 : self._count] in (["rows"], ["cut"]):
            each = made.shape[0] // self._samples
            rows = slice(self._start * each, None)
            shape = (self._start * each + made.shape[0], *shape)
        drawn = (source.standard_normal if name in _NORMAL else source.random_sample)(shape)
        numbers = torch.as_tensor(drawn[rows] if shape else drawn).to(made.device)
        if name in _NORMAL:
            return numbers
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


def ways_of(
    whole: Sequence[Drawn], parts: Sequence[Sequence[Drawn]], sizes: Sequence[int]
) -> list[str]:
    """For each draw of a step how slices draw it.

    "same" in all slices; "rows": each goes on where the one before ended; "cut" from the whole
    batch's; "apart": other numbers than the whole batch would have drawn.

    Args:
        whole: What was drawn for all samples at once.
        parts: What the slices drew.
        sizes: The samples in each slice.
    """
    if any(len(part) != len(whole) for part in parts):
        return ["apart"]
    ways = []
    for k, drawn in enumerate(whole):
        shapes = [part[k].shape for part in parts]
        if all(shape == drawn.shape for shape in shapes):
            ways.append("same")
            continue
        each = drawn.shape[0] / sum(sizes) if drawn.shape else 0.5
        rest = drawn.shape[1:]
        leading = each == int(each) and all(
            shape == (int(each) * n, *rest) for shape, n in zip(shapes, sizes, strict=True)
        )
        if leading and drawn.op in _IN_ORDER and not drawn.scope:
            ways.append("rows")
        else:
            ways.append("cut" if leading and drawn.op in _BY_SHAPE else "apart")
    return ways


class Rows(TorchDispatchMode):
    """The draws of the slices of one batch, on a CPU: those of the whole batch.

    When a draw is first come to, the numbers of all slices are drawn once, and it is kept where
    those of each begin. So slices may come in any order, and again.

    Args:
        ways: As `ways_of` found them.
        sizes: The samples in each slice.
    """

    def __init__(self, ways: Sequence[str], sizes: Sequence[int]) -> None:
        super().__init__()
        self._ways = ways
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
        place, self._count = self._count, self._count + 1
        way = self._ways[place] if place < len(self._ways) else "apart"
        if way == "apart":
            return func(*args, **kwargs)
        generator = kwargs.get("generator") or torch.default_generator
        if place == len(self._begins):
            self._look_ahead(way, generator, func, args, kwargs)
        begins = self._begins[place]
        generator.set_state(begins[self._slice if way == "rows" else 0])
        made = self._cut(func, args, kwargs) if way == "cut" else func(*args, **kwargs)
        generator.set_state(self._ends[place])
        return made

    def _look_ahead(self, way: str, generator: Any, func: Any, args: Any, kwargs: Any) -> None:
        """Draw what all slices will draw, so that the next draw begins behind it."""
        here = self._sizes[self._slice]
        begins = [generator.get_state()]
        if way == "same":
            func(*(x.clone() if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        for size in {"rows": self._sizes, "cut": [sum(self._sizes)], "same": []}[way]:
            func(*(_resized(x, here, size) for x in args), **kwargs)
            begins.append(generator.get_state())
        self._begins.append(begins)
        self._ends.append(generator.get_state())

    def _cut(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The rows of this slice, of a draw for the whole batch."""
        here, samples = self._sizes[self._slice], sum(self._sizes)
        whole = func(*(_resized(x, here, samples) for x in args), **kwargs)
        each, start = whole.shape[0] // samples, sum(self._sizes[: self._slice])
        rows = whole[start * each : (start + here) * each]
        if args and isinstance(args[0], torch.Tensor):
            return args[0].copy_(rows)
        return rows.clone()


def _resized(value: Any, size: int, wanted: int) -> Any:
    """An argument of a draw as it is for another number of samples; tensors are new ones."""
    if isinstance(value, torch.Tensor) and value.dim():
        rows = value.shape[0] // size * wanted
        return value[torch.arange(rows, device=value.device) % len(value)]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], int):
        return [value[0] // size * wanted, *value[1:]]
    return value
