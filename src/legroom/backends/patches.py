"""What legroom replaces in Keras and in a framework: put on, and taken off again.

Only what stands in the registry (`parts`) can be replaced, and only here. Each place holds one
stand-in, which calls the layers that were put on, the last one first, and the original below them.
So layers can be taken off in any order; and where somebody else has wrapped the stand-in meanwhile,
it stays below theirs and is nothing but the original.

A version that nobody has seen yet may lack a part of the registry. Then what was built on it is
left out with a sentence (`missing`), and the training runs as Keras would.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import pkgutil
import sys
import threading
from collections.abc import Callable, Hashable, Iterator
from typing import Any

from legroom.backends.base import SPELLED, used_name
from legroom.backends.parts import BRIEFLY, ON_OBJECT, PARTS, REPLACED, Part

__all__ = ["Make", "at_removal", "has", "is_off", "missing", "places", "put", "replaced", "set_on",
           "shadowed", "switch_on", "take_off", "take_off_all"]  # fmt: skip

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


def _in_this_thread(make: Make) -> Make:
    """Have a layer called in this thread alone, and not by what it calls itself.

    A training in another thread is none of our business. And what a layer does with the original
    is the original's: a gradient that is taken inside of a gradient is not caught twice.
    """
    thread = threading.get_ident()
    inside = False

    def limited(original: Callable[..., Any]) -> Callable[..., Any]:
        instead = make(original)

        @functools.wraps(original, updated=())
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal inside
            if inside or threading.get_ident() != thread:
                return original(*args, **kwargs)
            inside = True
            try:
                return instead(*args, **kwargs)
            finally:
                inside = False

        return call

    return limited


_lock = threading.RLock()
_places: dict[tuple[int, str], _Place] = {}
_groups: set[Hashable] = set()
_removals: list[Callable[[], Any]] = []
_off = False


def missing(purpose: str) -> str | None:
    """What these versions lack for a purpose, as half a sentence; None where all is there.

    The first answer holds for the process: later, some of these parts are legroom's own.
    """
    backend = used_name()
    # A loop in plain PyTorch or JAX has nothing to do with Keras, which would bring a framework.
    plain = backend in ("torch", "jax") and "keras" not in sys.modules
    without = "keras" if plain else None
    return _missing(purpose, backend, without)


@functools.cache
def _missing(purpose: str, backend: str, without: str | None) -> str | None:
    for part in PARTS:
        if part.package == without or part.backend not in (None, backend):
            continue
        if part.purpose == purpose and not part.optional:
            version = pkgutil.resolve_name(f"{part.package}:__version__")
            if part.known_in(version) and (lacking := part.lacks()) is not None:
                return f"this {SPELLED.get(part.package, 'Keras')} ({version}) has no {lacking}"
    return None


@functools.cache
def _declared(how: str, owner: str, name: str) -> Part:
    for part in PARTS:
        if (part.how, part.owner) == (how, owner) and any(
            fnmatch.fnmatchcase(name, pattern) for pattern in part.names
        ):
            return part
    raise LookupError(f"Not among legroom's patches. Received: {owner} {name}, {how}")


def _lay(group: Hashable, how: str, owner: str, name: str, make: Make, on: Any) -> _Place | None:
    """Put one layer on; None where this version does not have the place, and need not."""
    part = _declared(how, owner, name)
    try:
        on = pkgutil.resolve_name(owner) if on is None else on
        getattr(on, name)
    except (ImportError, AttributeError):
        if part.optional:
            return None
        raise
    with _lock:
        place = _places.get((id(on), name))
        if place is None:
            place = _places[id(on), name] = _Place(on, name)
        place.layers.append((group, make))
        try:
            place.arrange()
        except BaseException:
            _unlay(place, group)
            raise
        return place


def _unlay(place: _Place, group: Hashable) -> None:
    """Take a group's layers off a place."""
    place.layers = [layer for layer in place.layers if layer[0] != group]
    if place.arrange():
        del _places[id(place.owner), place.name]


def has(group: Hashable) -> bool:
    """Whether a group of replacements is in place."""
    return group in _groups


def put(group: Hashable, owner: str, name: str, make: Make, *, on: Any = None) -> None:
    """Replace a function that the registry has as replaced.

    Args:
        group: What the replacement belongs to; a group is taken off together.
        owner: The owner of the function, as in the registry.
        name: Its name.
        make: Given what was called so far, returns what is called from now on.
        on: The owner itself, where it is a class below the one in the registry.
    """
    if _lay(group, REPLACED, owner, name, make, on) is not None:
        _groups.add(group)


@contextlib.contextmanager
def replaced(owner: str, name: str, make: Make, *, on: Any = None) -> Iterator[None]:
    """Replace a function in this thread, while the context lasts.

    Other threads keep the original: a training in another thread is none of our business.

    Args:
        owner: As for `put`.
        name: As for `put`.
        make: As for `put`.
        on: As for `put`.
    """
    group = object()
    place = _lay(group, BRIEFLY, owner, name, _in_this_thread(make), on)
    try:
        yield
    finally:
        if place is not None:
            with _lock:
                _unlay(place, group)


def set_on(target: Any, owner: str, name: str, value: Any) -> None:
    """Set an attribute on one object, over that of its class, past Keras's tracking.

    Args:
        target: The object.
        owner: Its class, as in the registry.
        name: The attribute's name.
        value: What it is from now on.
    """
    _declared(ON_OBJECT, owner, name)
    object.__setattr__(target, name, value)


@contextlib.contextmanager
def shadowed(target: Any, owner: str, name: str, value: Any) -> Iterator[None]:
    """The same as `set_on`, while the context lasts.

    What the object itself had under this name, also from another shadow, comes back.
    """
    before = vars(target).get(name, _ABSENT)
    set_on(target, owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            object.__delattr__(target, name)
        else:
            object.__setattr__(target, name, before)


def take_off(group: Hashable) -> None:
    """Take off one group of replacements."""
    with _lock:
        _groups.discard(group)
        for place in reversed(list(_places.values())):
            if any(layer[0] == group for layer in place.layers):
                _unlay(place, group)


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
