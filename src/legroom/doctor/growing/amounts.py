"""What something holds: how many of what, and their bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

__all__ = ["Count", "Held", "Weigh"]

# What an object is and weighs, ("tensor", 4000); None for what weighs nothing by itself, and no
# bytes for what holds memory without telling how much.
Weigh = Callable[[Any], "tuple[str, int] | None"]


@dataclasses.dataclass(frozen=True)
class Held:
    """What a container, or a variable, holds.

    Attributes:
        kind: What most of it is: ``"tensor"``, ``"array"``, ``"model"``.
        count: How many of them.
        bytes: What they weigh together.
        entries: How many entries a container has, whatever they are.
        bound: The most entries it can have, for a deque that has such a limit.
        first: The identity of its first entry: another container may come to its address.
    """

    kind: str
    count: int
    bytes: int
    entries: int = 0
    bound: int | None = None
    first: int | None = None


@dataclasses.dataclass(frozen=True)
class Count:
    """Who held what.

    Attributes:
        iteration: After which iteration.
        containers: By identity.
        roots: By the names of the user's variables.
    """

    iteration: int
    containers: dict[int, Held]
    roots: dict[str, Held]
