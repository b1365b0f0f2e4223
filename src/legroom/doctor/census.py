"""Who holds what: the containers of this process that hold tensors, arrays and models.

Two counts, some iterations apart, tell which containers have grown. A count looks at every
container once and only into those whose latest entry weighs something, so it takes a few tenths
of a second; it is made only where memory grows.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import gc
import itertools
import os
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

__all__ = ["Held", "Weigh", "count_holders", "grown_holders", "name_of_holder"]

# What an object is and weighs, ("tensor", 4000); None for what weighs nothing by itself.
Weigh = Callable[[Any], "tuple[str, int] | None"]

_DEEPEST = 3
_CONTAINERS = (list, dict, set, collections.deque)


@dataclasses.dataclass(frozen=True)
class Held:
    """What a container holds.

    Attributes:
        kind: What most of it is: ``"tensor"``, ``"array"``, ``"model"``.
        count: How many of them.
        bytes: What they weigh together.
        bound: The most entries it can have, for a deque that has such a limit.
    """

    kind: str
    count: int
    bytes: int
    bound: int | None = None


def count_holders(weigh: Weigh) -> dict[int, Held]:
    """All containers that hold something of weight, by their identity."""
    found: dict[int, Held] = {}
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind in _CONTAINERS and candidate and _promising(candidate, weigh):
            held = _weighed(candidate, weigh)
            if held is not None:
                found[id(candidate)] = held
    return found


def grown_holders(
    before: dict[int, Held], now: dict[int, Held], iterations: float
) -> list[tuple[int, Held]]:
    """The containers that took in more, an iteration; the heaviest first.

    Args:
        before: The first count.
        now: The second.
        iterations: How many iterations lie between.
    """
    grown = []
    for identity, held in now.items():
        old = before.get(identity, Held(held.kind, 0, 0))
        new = Held(held.kind, held.count - old.count, held.bytes - old.bytes, held.bound)
        if new.count >= 0.5 * iterations and new.bytes > 0:
            grown.append((identity, new))
    return sorted(grown, key=lambda item: -item[1].bytes)


def name_of_holder(
    identity: int,
    frames: Iterable[types.FrameType] = (),
    line_of: Callable[[Any], str] | None = None,
) -> tuple[str, str]:
    """What the user calls a container, and the latest of what it holds.

    Args:
        identity: The container's.
        frames: Frames whose variables are looked through first.
        line_of: Knows the lines that made tensors.

    Returns:
        Its name ("the list `kept`") and where its latest entry was made, or an empty text.
    """
    container = next((c for c in gc.get_objects() if id(c) == identity), None)
    if container is None:
        return "a container that is gone", ""
    lines = map(line_of, _leaves(_latest(container))) if line_of is not None else ()
    return _name(container, frames), next(filter(None, lines), "")


def _latest(container: Any) -> Any:
    with contextlib.suppress(Exception):
        if isinstance(container, dict):
            return next(reversed(container.values()))
        if isinstance(container, set):
            return next(iter(container))
        return container[-1]
    return None


def _promising(container: Any, weigh: Weigh) -> bool:
    with contextlib.suppress(Exception):  # it may change while we look
        return any(
            weigh(leaf) is not None for leaf in itertools.islice(_leaves(_latest(container)), 8)
        )
    return False


def _weighed(container: Any, weigh: Weigh) -> Held | None:
    counts: collections.Counter[str] = collections.Counter()
    weights: collections.Counter[str] = collections.Counter()
    seen: set[int] = set()
    with contextlib.suppress(Exception):
        entries = container.values() if isinstance(container, dict) else container
        for entry in list(entries):
            for leaf in _leaves(entry):
                weight = weigh(leaf)
                if weight is not None and id(leaf) not in seen:
                    seen.add(id(leaf))
                    counts[weight[0]] += 1
                    weights[weight[0]] += weight[1]
    if not counts:
        return None
    kind = weights.most_common(1)[0][0]
    bound = container.maxlen if isinstance(container, collections.deque) else None
    return Held(kind, counts[kind], sum(weights.values()), bound)


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value, or what is in it, a few levels down."""
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        for inner in value[:64] if depth else value:
            yield from _leaves(inner, depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        for inner in list(value.values())[:64]:
            yield from _leaves(inner, depth + 1)
    elif type(value).__module__ == "__main__" and hasattr(value, "__dict__") and depth < _DEEPEST:
        yield from _leaves(vars(value), depth + 1)
    else:
        yield value


def _name(container: Any, frames: Iterable[types.FrameType]) -> str:
    kind = type(container).__name__
    for frame in frames:
        for name, value in list(frame.f_locals.items()):
            if value is container:
                return f"the {kind} `{name}`"
    for module in list(sys.modules.values()):
        if getattr(module, "__file__", None):
            for name, value in list(vars(module).items()):
                if value is container:
                    return f"the {kind} `{name}` of {os.path.basename(str(module.__file__))}"
    for referrer in gc.get_referrers(container):
        if isinstance(referrer, types.FrameType):
            continue
        owners = [referrer]
        if isinstance(referrer, dict):
            owners = [
                o for o in gc.get_referrers(referrer) if getattr(o, "__dict__", 0) is referrer
            ]
        for owner in owners:
            attributes = getattr(owner, "__dict__", None) or {}
            for name, value in list(attributes.items()):
                if value is container:
                    return f"the {kind} `.{name}` of a {type(owner).__name__}"
    return f"a {kind}"
