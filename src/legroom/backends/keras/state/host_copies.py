"""Copies of variables' values in main memory, and their way back.

How a value is read and written is the framework's; nothing here imports one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from legroom.core.errors import SnapshotError

__all__ = ["HostCopies", "checked_places", "name_of"]


class HostCopies:
    """Copies of variables' values in main memory, taken again and again.

    The memory is used again: pages that a process has not used before are dear, and 400 MB of them
    took a second where the copy itself takes 0.04.

    Args:
        value: A variable's value as an array; on a CPU it may be the variable's own memory.
    """

    def __init__(self, value: Callable[[Any], Any]) -> None:
        self._value = value
        self._copies: list[Any] = []

    @property
    def nbytes(self) -> int:
        """The memory that is held for them."""
        return sum(copy.nbytes for copy in self._copies)

    def read(self, variables: Iterable[tuple[str, Any]], arrays: list[Any]) -> list[list[Any]]:
        """Copy the values, over those that were copied before.

        Returns:
            A table of what they belong to, their names, and where among the arrays they are.
        """
        before, self._copies = self._copies, []
        table = []
        for group, variable in variables:
            value = self._value(variable)
            if value.dtype.kind in "OSU":
                continue  # text: a vocabulary, which training does not change
            table.append([group, name_of(variable), len(arrays)])
            place = len(self._copies)
            copy = before[place] if place < len(before) else None
            if copy is None or copy.shape != value.shape or copy.dtype != value.dtype:
                copy = np.empty_like(value)
            np.copyto(copy, value)
            self._copies.append(copy)
            arrays.append(copy)
        return table


def checked_places(
    variables: Sequence[tuple[str, Any]],
    dtype: Callable[[Any], str],
    table: list[list[Any]],
    arrays: list[Any],
) -> list[tuple[Any, Any]]:
    """Each variable with its value, where every one of them has its place.

    Args:
        variables: What there is, and what it belongs to.
        dtype: The name of a variable's type, as NumPy has it.
        table: What `HostCopies.read` returned.
        arrays: Where the values are.

    Raises:
        SnapshotError: If these are not the variables of the training that was saved.
    """
    wanted = [(group, arrays[index].shape, arrays[index].dtype.name) for group, _, index in table]
    have = [(group, tuple(variable.shape), dtype(variable)) for group, variable in variables]
    if wanted != have:
        raise SnapshotError(_difference(table, variables, wanted, have))
    return [
        (variable, arrays[index])
        for (_, variable), (_, _, index) in zip(variables, table, strict=True)
    ]


def name_of(variable: Any) -> str:
    """What a variable is called; tensors have no name."""
    for attribute in ("path", "name"):
        if isinstance(name := getattr(variable, attribute, None), str):
            return name
    return "tensor"


def _difference(table: Any, there: Any, wanted: Any, have: Any) -> str:
    text = (
        f"The snapshot holds {len(wanted)} variables and the training here has {len(have)}: "
        "this is another model, or another optimizer."
    )
    for i, (one, other) in enumerate(zip(wanted, have, strict=False)):
        if one != other:
            return (
                f"{text} The first difference: {table[i][1]} is {one[2]}{list(one[1])} in the "
                f"snapshot, where {name_of(there[i][1])} is {other[2]}{list(other[1])} here."
            )
    return text
