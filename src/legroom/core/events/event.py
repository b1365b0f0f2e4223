"""Event, the base of all of them, and how they go to JSON and back.

In JSON an event is its name, its text, when it was, and its other fields as ``data``. These names
stay: journals of other versions are read, and users read reports.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any, ClassVar

from legroom.core.records import Record, check_kind, plain, plain_fields, read_fields

__all__ = ["Event", "OfBatch", "Unknown", "WithBudget", "WithPeak"]

_by_name: dict[str, type[Event]] = {}


@dataclasses.dataclass(frozen=True)
class Event(Record):
    """One thing that happened. Its class says what kind of thing.

    Attributes:
        text: One line for people, complete in itself. Empty where there is nothing to say.
        at: When, in seconds since the epoch.
    """

    text: str = ""
    at: float = dataclasses.field(default_factory=time.time)

    NAME: ClassVar[str] = ""

    def __init_subclass__(cls, name: str = "") -> None:
        super().__init_subclass__()
        if name:
            cls.NAME = name
            _by_name[name] = cls

    @property
    def name(self) -> str:
        """What kind of thing, as it is called in JSON."""
        return self.NAME

    @property
    def data(self) -> dict[str, Any]:
        """The event's own fields as plain JSON types."""
        fields = plain_fields(self)
        return {key: value for key, value in fields.items() if key not in ("text", "at")}

    def to_dict(self) -> dict[str, Any]:
        """The event as plain JSON types: of one kind, whatever its class."""
        return {
            "kind": Event.__name__,
            "version": self.VERSION,
            "name": self.name,
            "text": self.text,
            "at": self.at,
            "data": self.data,
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Event:
        """Read what `to_dict` wrote, also in another version of legroom.

        Returns:
            An event of the class that its name stands for; an `Unknown` where there is
            none, or where it can't be made of the data.

        Raises:
            ValueError: If it is no event.
        """
        check_kind(data, Event.__name__, cls.VERSION)
        name, told = data.get("name"), data.get("data", {})
        if not isinstance(name, str) or not isinstance(told, dict):
            raise ValueError(f"Expected an event's name and data. Received: {name!r}, {told!r}")
        common: dict[str, Any] = {key: data[key] for key in ("text", "at") if key in data}
        known = _by_name.get(name)
        if known is not None:
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                return known(**read_fields(known, {**told, **common}))
        return Unknown(**common, told_name=name, told_data=told)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Unknown(Event):
    """An event of a journal that this version does not know, kept as it is there."""

    told_name: str
    told_data: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """As it is called in the journal."""
        return self.told_name

    @property
    def data(self) -> dict[str, Any]:
        """As it is in the journal."""
        return dict(plain(self.told_data))


# What events of several kinds tell.


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfBatch(Event):
    """What tells the size of a batch, as the script asked for it."""

    batch_size: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithBudget(Event):
    """What tells how much device memory a training may use, where a limit is known."""

    budget_bytes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class WithPeak(Event):
    """What tells the most device memory that was in use so far, where the allocator does."""

    peak_bytes: int | None = None
