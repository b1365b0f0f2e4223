"""Who holds what: the containers of this process that hold tensors, arrays and models.

Two counts, some iterations apart, tell which containers have grown. A count looks at every
container once and only into those whose latest entry weighs something, so it takes a few tenths
of a second; it is made only where memory grows. What is held by other means than a container is
`legroom.doctor.growing.roots`'s subject.
"""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from legroom.doctor.growing.amounts import Held, Weigh
from legroom.doctor.growing.roots import is_users_type, path_to

__all__ = ["count_holders", "grown_holders", "name_of_holder"]

_DEEPEST = 3
_CONTAINERS = (list, dict, set, collections.deque)


def count_holders(weigh: Weigh) -> dict[int, Held]:
    """All containers that hold something of weight, by their identity."""
    found: dict[int, Held] = {}
    containers: dict[type, bool] = {}  # of the types that there are, which are containers
    for candidate in gc.get_objects():
        kind = type(candidate)
        if kind not in containers:
            containers[kind] = issubclass(kind, _CONTAINERS)
        if containers[kind] and _is_whole(candidate) and _promising(candidate, weigh):
            held = _weighed(candidate, weigh)
            if held is not None:
                found[id(candidate)] = held
    return found


def grown_holders(
    before: dict[int, Held], now: dict[int, Held], iterations: float
) -> list[tuple[int, Held]]:
    """The containers that took in more entries, an iteration; the heaviest first.

    One of which an entry takes in more is not named: the entry is.

    Args:
        before: The first count; without one, all that there is counts as taken in.
        now: The second.
        iterations: How many iterations lie between.
    """
    grown = []
    for identity, held in now.items():
        if before and identity not in before:
            continue  # what is as new as this can't be what takes in things all the time
        old = before.get(identity, Held(held.kind, 0, 0, first=held.first))
        if old.first != held.first:
            continue  # another one, where one was that is gone
        new = Held(
            held.kind, held.count - old.count, held.bytes - old.bytes,
            held.entries - old.entries, held.bound,
        )  # fmt: skip
        if min(new.count, new.entries) >= 0.5 * iterations and new.bytes >= 0:
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


def _is_whole(container: Any) -> bool:
    """Whether all its entries are there.

    C code may be filling a list just now (and some of TensorFlow's leaves one unfilled): to touch
    a place that is still empty would end the process.
    """
    return not isinstance(container, list) or len(gc.get_referents(container)) >= len(container)


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
        return len(container) > 0 and any(
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
    return Held(kind, counts[kind], sum(weights.values()), len(container), bound, _first(container))


def _first(container: Any) -> int | None:
    """The identity of what a list or a dictionary keeps in its first place while it takes in."""
    if not isinstance(container, (list, dict)):
        return None
    with contextlib.suppress(Exception):  # it may change while we look
        return id(next(iter(container.values() if isinstance(container, dict) else container)))
    return None


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """A value, or what is in it, a few levels down."""
    if isinstance(value, (list, tuple)) and depth < _DEEPEST:
        for inner in value[:64] if depth else value:
            yield from _leaves(inner, depth + 1)
    elif isinstance(value, dict) and depth < _DEEPEST:
        for inner in list(value.values())[:64]:
            yield from _leaves(inner, depth + 1)
    elif is_users_type(type(value)) and hasattr(value, "__dict__") and depth < _DEEPEST:
        yield from _leaves(vars(value), depth + 1)
    else:
        yield value


def _name(container: Any, frames: Iterable[types.FrameType]) -> str:
    kind = type(container).__name__
    path = path_to(id(container), frames)
    if path:
        return f"the {kind} `{path}`"
    for referrer in gc.get_referrers(container):
        if isinstance(referrer, types.FrameType):
            continue
        owners = [referrer]
        if isinstance(referrer, dict):
            owners = [
                o for o in gc.get_referrers(referrer) if getattr(o, "__dict__", 0) is referrer
            ]
        # A library's own come and go, and their addresses are used again.
        for owner in (one for one in owners if is_users_type(type(one))):
            attributes = getattr(owner, "__dict__", None) or {}
            for name, value in list(attributes.items()):
                if value is container:
                    return f"the {kind} `.{name}` of a {type(owner).__name__}"
    return f"a {kind}"
