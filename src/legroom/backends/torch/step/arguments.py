"""What a step was called with: its data, which can be cut into slices, and all else as it is.

A list to which the step appends, a dict that it counts in, an object of the user's own: the step
gets the very same ones. Only what holds samples is made again for a slice.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.utils._pytree as pytree

__all__ = ["Arguments", "Listed", "beside_data"]

# A value, made of the leaves that come next.
_Make = Callable[[Iterator[Any]], Any]
_TENSORS = (torch.Tensor, np.ndarray)
_MOST_INPUTS = 8  # a longer list of tensors is none of a model's inputs
_NUMBERS = (int, float, bool, str)
_Packed = torch.nn.utils.rnn.PackedSequence


class Listed:
    """A list with an entry for each sample: sentences, lengths, pictures of different sizes.

    Args:
        entries: The list, or a tuple of strings.
        sure: Whether the number of its entries tells how many samples there are.
    """

    def __init__(self, entries: Sequence[Any], *, sure: bool) -> None:
        self.entries, self.sure = entries, sure

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, which: slice | Sequence[int]) -> Listed:
        """Some of the entries, by a slice or by their numbers."""
        numbers = range(len(self))[which] if isinstance(which, slice) else which
        chosen = type(self.entries)(self.entries[i] for i in numbers)  # type: ignore[call-arg]
        return Listed(chosen, sure=self.sure)

    def __add__(self, other: Listed) -> Listed:
        return Listed([*self.entries, *other.entries], sure=self.sure)


class Arguments:
    """The arguments of one call, which pytrees see as a list of its data.

    Args:
        args: Those by position.
        kwargs: Those by name.

    Attributes:
        leaves: The data: tensors, arrays, and lists with an entry for each sample.
        rest: Everything else, one by one, by the places of the arguments that it is in.
        kept: The same, but containers without data as they are.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.leaves: list[Any] = []
        self.rest: list[tuple[int | str, Any]] = []
        self.kept: list[tuple[int | str, Any]] = []
        self._before: list[tuple[Any, Any]] = []
        self._lengths: dict[str, set[int]] = {"tensors": set(), "others": set()}
        found = _tensors((args, kwargs), self._lengths)
        self._outside = {len(x) for x in found if len(x.shape)}
        self._place: int | str = 0
        self._args = [self._looked_at(number, value) for number, value in enumerate(args)]
        self._kwargs = {name: self._looked_at(name, value) for name, value in kwargs.items()}
        self._called = False

    def call(self, function: Callable[..., Any]) -> Any:
        """Call a function with them."""
        if self._called:
            for container, before in self._before:
                _refill(container, before)  # a call that failed has taken something out of it
        self._called = True
        leaves = iter(self.leaves)
        args = [make(leaves) for make in self._args]
        return function(*args, **{name: make(leaves) for name, make in self._kwargs.items()})

    def with_leaves(self, leaves: Sequence[Any]) -> Arguments:
        """The same call with other data."""
        made = copy.copy(self)
        made.leaves = list(leaves)
        return made

    def _looked_at(self, place: int | str, value: Any) -> _Make:
        self._place = place
        return self._look(value)

    def _look(self, value: Any) -> _Make:
        """How a value is made of its leaves, which are noted."""
        if isinstance(value, _TENSORS) and not isinstance(value, torch.nn.Parameter):
            return self._leaf(value, value)
        if type(value) in (list, tuple) and value:
            if (listed := self._listed(value)) is not None:
                return self._leaf(listed, value)
            if type(value[0]) in _NUMBERS or _is_scalar(value[0]):
                return self._keep(value)  # losses so far, say: there may be very many
            return self._container(value, dict(enumerate(value)))
        if pytree.is_namedtuple_instance(value) and not isinstance(value, _Packed):
            return self._container(value, dict(enumerate(value)))
        if isinstance(value, Mapping):
            return self._container(value, dict(value))
        if _is_plain_dataclass(value):
            return self._container(value, dict(vars(value)))
        return self._keep(value)

    def _keep(self, value: Any) -> _Make:
        self.rest.append((self._place, value))
        self.kept.append((self._place, value))
        return lambda leaves: value

    def _leaf(self, leaf: Any, value: Any) -> _Make:
        self.leaves.append(leaf)

        def make(leaves: Iterator[Any]) -> Any:
            given = next(leaves)
            if given is leaf:
                return value
            return type(value)(given.entries) if isinstance(given, Listed) else given

        return make

    def _container(self, value: Any, entries: dict[Any, Any]) -> _Make:
        known, kept = len(self.leaves), len(self.kept)
        makes = {key: self._look(entry) for key, entry in entries.items()}
        if len(self.leaves) == known:
            self.kept[kept:] = [(self._place, value)]
            return lambda leaves: value  # nothing to be cut in it
        before = value
        if not isinstance(value, tuple):
            before = copy.copy(value)
            self._before.append((value, before))

        def make(leaves: Iterator[Any]) -> Any:
            made = {key: one(leaves) for key, one in makes.items()}
            if all(made[key] is entries[key] for key in entries):
                return value
            return _filled(before, made)

        return make

    def _listed(self, value: Sequence[Any]) -> Listed | None:
        """A list of samples, if it is one."""
        first, samples = value[0], len(value)
        if isinstance(first, str) or (type(first) is int and isinstance(value, list)):
            alike = all(type(entry) is type(first) for entry in value)
            return Listed(value, sure=False) if alike else None
        kind = _kind_of_list(value)
        if kind is None:
            return None
        shapes = {tuple(x.shape) for x in value} if kind == "tensors" else set()
        inside = {len(x) for entry in value for x in _tensors(entry) if len(x.shape)}
        ragged = len(shapes) > 1 and samples > 2
        beside = samples in self._lengths["others" if kind == "tensors" else "tensors"]
        apart = not inside & self._outside or samples > _MOST_INPUTS
        if ragged or (apart and (samples in self._outside or (beside and not self._outside))):
            return Listed(value, sure=True)
        return None


def beside_data(data: Any, function: Any) -> list[tuple[str, Any]]:
    """What a step is called with beside its data, by the names of its arguments.

    Args:
        data: The arguments; of a batch of Keras nothing is known.
        function: The step.
    """
    if not isinstance(data, Arguments):
        return []
    code = getattr(inspect.unwrap(function), "__code__", None)
    names = () if code is None else code.co_varnames[: code.co_argcount]

    def name(place: int | str) -> str:
        if isinstance(place, str):
            return place
        return names[place] if place < len(names) else "an argument"

    return [(name(place), value) for place, value in data.kept]


def _is_scalar(value: Any) -> bool:
    return isinstance(value, _TENSORS) and not len(value.shape)


def _kind_of_list(value: Any) -> str | None:
    """Whether a list may have an entry for each sample, and of which kind these are."""
    if not isinstance(value, list) or len(value) < 2:
        return None
    if all(isinstance(x, torch.Tensor) and x.dim() for x in value):
        return "tensors" if len({(x.dtype, x.dim()) for x in value}) == 1 else None
    # As of detection: a dict of boxes and labels for each picture.
    return "others" if all(isinstance(x, (Mapping, list)) for x in value) else None


def _tensors(value: Any, lengths: dict[str, set[int]] | None = None) -> Iterator[Any]:
    """The tensors in a value.

    Args:
        value: The value.
        lengths: Filled with the lengths of lists that may have an entry for each sample, by their
            kind; what is in those is left out then.
    """
    if isinstance(value, _TENSORS):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _tensors(entry, lengths)
    elif isinstance(value, (list, tuple)) and value and type(value[0]) not in _NUMBERS:
        kind = None if lengths is None else _kind_of_list(value)
        if kind is not None and lengths is not None:
            lengths[kind].add(len(value))
            if kind == "others" or len(value) > 2:
                return
        for entry in value:
            yield from _tensors(entry, lengths)
    elif _is_plain_dataclass(value):
        for entry in vars(value).values():
            yield from _tensors(entry, lengths)


def _is_plain_dataclass(value: Any) -> bool:
    """Whether it is a dataclass that holds nothing but data."""
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        return False
    plain = (*_TENSORS, str, int, float, list, tuple, dict, type(None))
    fields = getattr(value, "__dict__", None)
    return fields is not None and all(isinstance(x, plain) for x in fields.values())


def _filled(before: Any, entries: dict[Any, Any]) -> Any:
    """A container like another one, with other entries."""
    if isinstance(before, tuple):
        values = entries.values()
        return type(before)(*values) if pytree.is_namedtuple_instance(before) else tuple(values)
    made = copy.copy(before)
    for key, entry in entries.items():
        if isinstance(made, (MutableMapping, list)):
            made[key] = entry
        else:
            object.__setattr__(made, key, entry)
    return made


def _refill(container: Any, before: Any) -> None:
    """Put back what a container held."""
    if isinstance(container, MutableMapping):
        container.clear()
        container.update(before)
    elif isinstance(container, list):
        container[:] = before
    else:
        vars(container).update(vars(before))


pytree.register_pytree_node(
    Arguments, lambda given: (given.leaves, given), lambda leaves, given: given.with_leaves(leaves)
)
