"""What a step is called with: the batch, what is trained, and what chooses the step.

A step in JAX is given all that it works on, and returns new values. So what it also returns
(weights, the optimizer's state) is what is trained, and arrays of one length among the rest are the
batch.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import default_registry

from legroom.backends.keras.slices.rules import Refused

__all__ = ["Call", "Layout", "is_array", "layouts_of"]


class Call:
    """A call of a step."""

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.args = args
        self.kwargs = kwargs
        self.leaves, self.tree = jax.tree.flatten((args, kwargs))

    def of(self, function: Any) -> Any:
        """Call a function so."""
        return function(*self.args, **self.kwargs)


@dataclasses.dataclass(frozen=True)
class Layout:
    """What the leaves of a step's calls are, by number.

    Attributes:
        dynamic: Those that are arrays or numbers for JAX; others choose what is traced.
        batch: Those that are cut, among the dynamic ones.
        weights: Those that are trained, or are of a type that could be, likewise.
        donated: Those whose memory the step may use for its results, likewise.
    """

    dynamic: Sequence[int]
    batch: Sequence[int]
    weights: Sequence[int]
    donated: Sequence[int]

    def leaves(self, call: Call) -> list[Any]:
        """The dynamic leaves of a call."""
        return [call.leaves[number] for number in self.dynamic]

    def samples(self, call: Call) -> int | None:
        """The samples in its batch; None where they are of different lengths."""
        lengths = {_length(call.leaves[self.dynamic[number]]) for number in self.batch}
        return lengths.pop() if len(lengths) == 1 else None

    def with_samples(self, call: Call, samples: int) -> Call:
        """The same call for another number of samples, to be traced only."""
        leaves = list(call.leaves)
        for number in (self.dynamic[which] for which in self.batch):
            leaf = leaves[number]
            leaves[number] = jax.ShapeDtypeStruct((samples, *leaf.shape[1:]), leaf.dtype)
        args, kwargs = jax.tree.unflatten(call.tree, leaves)
        return Call(args, kwargs)


def is_array(leaf: Any) -> bool:
    """Whether a leaf is an array."""
    return isinstance(leaf, (jax.Array, np.ndarray))


def layouts_of(call: Call, traced: Any) -> Iterator[Layout]:
    """What the leaves of a call may be: the likeliest first.

    Raises:
        Refused: If it has no batch.
    """
    dynamic = _dynamic(call, traced)
    leaves = [call.leaves[number] for number in dynamic]
    returned = _Returned(traced.out_info)
    state: list[bool] = []
    bare: list[bool] = []  # arrays that are arguments by themselves
    args, kwargs = traced.args_info
    for argument in (*args, *(kwargs[name] for name in sorted(kwargs))):
        before = len(state)
        state += returned.which(argument)
        bare += [jax.tree_util.all_leaves([argument])] * (len(state) - before)
    lengths = [_length(x) for x in leaves]
    counted = Counter(
        n for n, s, x in zip(lengths, state, leaves, strict=True)
        if n is not None and not s and not _is_key(x)
    )  # fmt: skip
    if not counted:
        raise Refused("none of its arguments is a batch: it returns all of them, as what it trains")
    samples = max(counted, key=lambda n: counted[n])
    infos = jax.tree.leaves(traced.args_info)
    donated = [k for k, info in enumerate(infos) if info.donated]
    for widely in (False, True):
        batch = [
            k for k, n in enumerate(lengths)
            if n == samples and (not state[k] or (widely and bare[k])) and not _is_key(leaves[k])
        ]  # fmt: skip
        weights = [k for k, x in enumerate(leaves) if k not in batch and not _is_key(x)]
        yield Layout(dynamic, batch, weights, donated)


class _Returned:
    """What a step returns, part by part."""

    def __init__(self, info: Any) -> None:
        self._parts: set[Any] = set()
        self._note(info)

    def _note(self, node: Any) -> None:
        self._parts.add(_signature(node))
        for child in _children(node):
            self._note(child)

    def which(self, node: Any) -> list[bool]:
        """For each leaf of an argument whether it is also returned."""
        leaves = jax.tree.leaves(node)
        if _signature(node) in self._parts:
            return [True] * len(leaves)
        children = _children(node)
        if not children:
            return [False] * len(leaves)
        return [found for child in children for found in self.which(child)]


def _children(node: Any) -> list[Any]:
    made = default_registry.flatten_one_level(node)
    return [] if made is None else list(made[0])


def _signature(node: Any) -> Any:
    leaves, tree = jax.tree.flatten(node)
    return tree, tuple((x.shape, str(x.dtype)) for x in leaves)


def _dynamic(call: Call, traced: Any) -> list[int]:
    """The leaves of a call that are no static arguments."""
    infos, named = traced.args_info
    arrays = [all(is_array(y) or _is_number(y) for y in jax.tree.leaves(x)) for x in call.args]
    if len(infos) != len(call.args):
        lacking = len(call.args) - len(infos)
        kept = arrays
        if arrays.count(False) != lacking:
            kept = [good and not _is_number(x) for good, x in zip(arrays, call.args, strict=True)]
        if kept.count(True) != len(infos):
            raise Refused("which of its arguments are static is not known. Pass them by name")
    else:
        kept = [True] * len(call.args)
    wanted: list[bool] = []
    for keep, argument in zip(kept, call.args, strict=True):
        wanted += [keep] * len(jax.tree.leaves(argument))
    for name in sorted(call.kwargs):
        wanted += [name in named] * len(jax.tree.leaves(call.kwargs[name]))
    found = [number for number, keep in enumerate(wanted) if keep]
    if len(found) != len(jax.tree.leaves(traced.args_info)):
        raise Refused("which of its arguments are static is not known. Pass them by name")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, complex))


def _length(leaf: Any) -> int | None:
    return int(leaf.shape[0]) if is_array(leaf) and leaf.ndim else None


def _is_key(leaf: Any) -> bool:
    """Whether a leaf is a key for random numbers."""
    if not is_array(leaf):
        return False
    if isinstance(leaf, jax.Array) and jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return True
    return bool(leaf.dtype == np.uint32 and leaf.shape == (2,))
