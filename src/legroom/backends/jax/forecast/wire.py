"""Messages in the wire format of protocol buffers, read without their classes.

XLA hands out its program and its memory plan so, and JAX brings no classes to read them with.
"""

from __future__ import annotations

from collections.abc import Iterator

__all__ = ["fields", "integers", "text"]

_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def fields(message: bytes) -> dict[int, list[int | bytes]]:
    """The fields of a message, by their numbers: integers, or bytes for all else.

    Raises:
        ValueError: If it is no such message.
    """
    found: dict[int, list[int | bytes]] = {}
    place, end = 0, len(message)
    try:
        while place < end:
            key, place = _varint(message, place)
            kind, value = key & 7, 0
            if kind == _VARINT:
                value, place = _varint(message, place)
                found.setdefault(key >> 3, []).append(value)
                continue
            if kind == _BYTES:
                size, place = _varint(message, place)
            elif kind in (_EIGHT_BYTES, _FOUR_BYTES):
                size = 8 if kind == _EIGHT_BYTES else 4
            else:
                raise ValueError(f"Expected a field of a known kind. Received: {kind}")
            found.setdefault(key >> 3, []).append(message[place : place + size])
            place += size
    except IndexError:
        raise ValueError("The message ends too early.") from None
    return found


def integers(values: list[int | bytes]) -> Iterator[int]:
    """The numbers of a repeated field, packed or not."""
    for value in values:
        if isinstance(value, int):
            yield value
            continue
        place = 0
        while place < len(value):
            number, place = _varint(value, place)
            yield number


def text(values: list[int | bytes] | None) -> str:
    """The text of a field; empty where there is none."""
    value = values[-1] if values else b""
    return value.decode("utf8", "replace") if isinstance(value, bytes) else ""


def _varint(message: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = message[place]
        place += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number, place
        shift += 7
