"""What legroom replaces in Keras and in a framework: put on, and taken off again.

Every function of another package that is replaced for longer than a moment is replaced here. Each
place holds one stand-in, which calls the layers that were put on, the last one first, and the
original below them. So layers can be taken off in any order; and where somebody else has wrapped
the stand-in meanwhile, it stays below theirs and is nothing but the original.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Hashable
from typing import Any

__all__ = ["Make", "at_removal", "has", "is_off", "places", "put", "switch_on", "take_off",
           "take_off_all"]  # fmt: skip

# Given a function, what is called instead of it.
Make = Callable[[Callable[..., Any]], Callable[..., Any]]

_ABSENT = object()


class _Place:
    """An attribute of a class or a module, and what was put over it."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.own = vars(owner).get(name, _ABSENT)  # an inherited one is not its own
        self.original = getattr(owner, name)
        self.layers: list[tuple[Hashable, Make]] = []
        self._call = self.original

        # A class may be replaced as well: its attributes are no business of the stand-in.
        @functools.wraps(self.original, updated=())
        def stand_in(*args: Any, **kwargs: Any) -> Any:
            return self._call(*args, **kwargs)

        self.stand_in = stand_in
        setattr(owner, name, stand_in)

    def arrange(self) -> bool:
        """Call what is there now; whether the place is as it was before legroom came."""
        call = self.original
        for _, make in self.layers:
            call = make(call)
        self._call = call
        if self.layers or vars(self.owner).get(self.name) is not self.stand_in:
            return False
        if self.own is _ABSENT:
            delattr(self.owner, self.name)
        else:
            setattr(self.owner, self.name, self.own)
        return True


_lock = threading.RLock()
_places: dict[tuple[int, str], _Place] = {}
_groups: set[Hashable] = set()
_removals: list[Callable[[], Any]] = []
_off = False


def has(group: Hashable) -> bool:
    """Whether a group of replacements is in place."""
    return group in _groups


def put(group: Hashable, owner: Any, name: str, make: Make) -> None:
    """Replace a function.

    Args:
        group: What the replacement belongs to; a group is taken off together.
        owner: The class or module that has the function.
        name: Its name.
        make: Given what was called so far, returns what is called from now on.
    """
    with _lock:
        place = _places.get((id(owner), name))
        if place is None:
            place = _places[id(owner), name] = _Place(owner, name)
        place.layers.append((group, make))
        place.arrange()
        _groups.add(group)


def take_off(group: Hashable) -> None:
    """Take off one group of replacements."""
    with _lock:
        _groups.discard(group)
        for key, place in reversed(list(_places.items())):
            kept = [layer for layer in place.layers if layer[0] != group]
            if len(kept) < len(place.layers):
                place.layers = kept
                if place.arrange():
                    del _places[key]


def take_off_all() -> None:
    """Take off everything, and undo what is no replacement; legroom is off from here on."""
    global _off
    with _lock:
        _off = True
        while _removals:
            _removals.pop()()
        for group in list(_groups):
            take_off(group)


def at_removal(undo: Callable[[], Any]) -> None:
    """Have something undone when everything is taken off."""
    _removals.append(undo)


def is_off() -> bool:
    """Whether everything was taken off, and nothing was asked for since then."""
    return _off


def switch_on() -> None:
    """Something is asked for: legroom is on again."""
    global _off
    _off = False


def places() -> list[tuple[Any, str]]:
    """Where something is replaced now."""
    return [(place.owner, place.name) for place in _places.values() if place.layers]
