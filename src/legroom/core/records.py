"""Records: frozen dataclasses that go to JSON and back, and show themselves.

A record is what one floor hands to another, and what is kept on disk. Its JSON carries the
record's kind and version, so that a reader can refuse what it does not know instead of guessing.
How a record looks is no business of its own: ``report`` registers a renderer here, and the
record's ``__rich__``, ``_repr_html_`` and ``_repr_mimebundle_`` ask it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Callable, Collection
from typing import Any, ClassVar, TypeVar

__all__ = [
    "Record",
    "Shown",
    "check_kind",
    "plain",
    "plain_fields",
    "read_fields",
    "register_renderer",
]

R = TypeVar("R", bound="Record")

_renderers: dict[tuple[type, str], Callable[[Any], Any]] = {}
_WIDEST = 80


def register_renderer(kind: type, medium: str, render: Callable[[Any], Any]) -> None:
    """Say how records of a kind are shown in a medium, ``"rich"`` or ``"html"``."""
    _renderers[kind, medium] = render


class Shown:
    """Something that shows itself, in a terminal by rich and in a notebook."""

    def __rich__(self) -> Any:
        return self._render("rich") or repr(self)

    def __str__(self) -> str:
        return self._as_text()

    def _repr_html_(self) -> str | None:
        return typing.cast("str | None", self._render("html"))

    def _repr_mimebundle_(
        self, include: Collection[str] | None = None, exclude: Collection[str] | None = None
    ) -> dict[str, str]:
        """What a notebook keeps of it: as text, and as HTML where there is a renderer."""
        bundle = {"text/plain": self._as_text()}
        html = self._repr_html_()
        if html is not None:
            bundle["text/html"] = html
        return {
            kind: text
            for kind, text in bundle.items()
            if (include is None or kind in include) and kind not in (exclude or ())
        }

    def _as_text(self) -> str:
        shown = self._render("rich")
        if shown is None:
            return repr(self)
        import io

        from rich.console import Console

        text = io.StringIO()
        # Not as in a notebook: there rich would show it by itself, beside what is returned here.
        console = Console(
            file=text, width=_WIDEST, highlight=False, color_system=None, force_jupyter=False
        )
        console.print(shown)
        return text.getvalue().rstrip()

    def _render(self, medium: str) -> Any:
        for kind in type(self).__mro__:
            render = _renderers.get((kind, medium))
            if render is not None:
                return render(self)
        return None


@dataclasses.dataclass(frozen=True)
class Record(Shown):
    """Base of all records. Subclasses are frozen dataclasses and may raise ``VERSION``."""

    VERSION: ClassVar[int] = 1

    def to_dict(self) -> dict[str, Any]:
        """The record as plain JSON types, with its kind and version in front."""
        return {"kind": type(self).__name__, "version": self.VERSION, **plain_fields(self)}

    def to_json(self, *, indent: int | None = None) -> str:
        """The record as one JSON document."""
        return json.dumps(self.to_dict(), indent=indent, allow_nan=False)

    @classmethod
    def from_dict(cls: type[R], data: dict[str, Any]) -> R:
        """Read what `to_dict` wrote.

        Raises:
            ValueError: If it is another kind or version of record, or fields are missing.
        """
        check_kind(data, cls.__name__, cls.VERSION)
        return cls(**read_fields(cls, data))

    @classmethod
    def from_json(cls: type[R], text: str) -> R:
        """Read what `to_json` wrote."""
        data = json.loads(text)
        if not isinstance(data, dict):
            raise ValueError(f"Expected a JSON object. Received: {type(data).__name__}")
        return cls.from_dict(data)


def check_kind(data: dict[str, Any], kind: str, version: int) -> None:
    """Refuse another kind or version of record.

    Raises:
        ValueError: If it is one.
    """
    if (data.get("kind"), data.get("version")) != (kind, version):
        raise ValueError(
            f"Expected a {kind} of version {version}. "
            f"Received: kind={data.get('kind')!r}, version={data.get('version')!r}"
        )


def plain_fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass as plain JSON types."""
    return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}


def read_fields(kind: type, data: dict[str, Any]) -> dict[str, Any]:
    """The fields of a dataclass, from what `plain_fields` made of them.

    Raises:
        ValueError: If one is missing that has no default.
    """
    hints = _hints(kind)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if field.name in data:
            values[field.name] = _typed(data[field.name], hints[field.name])
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ValueError(f"A {kind.__name__} without its field {field.name!r}.")
    return values


def plain(value: Any) -> Any:
    """A value as plain JSON types."""
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no NaN and no infinity
    if dataclasses.is_dataclass(value):
        return plain_fields(value)
    return value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _typed(value: Any, hint: Any) -> Any:
    """Turn plain JSON back into the records and tuples that the field's type names."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if value is None:
        return None
    if origin in (typing.Union, types.UnionType):
        return _typed(value, next(arg for arg in args if arg is not type(None)))
    if origin is tuple:
        return tuple(_typed(item, args[0]) for item in value)
    if origin is list:
        return [_typed(item, args[0]) for item in value]
    if origin is None and isinstance(hint, type):
        if issubclass(hint, Record):
            return hint.from_dict(value)
        if dataclasses.is_dataclass(hint):
            return hint(**read_fields(hint, value))
    return value
