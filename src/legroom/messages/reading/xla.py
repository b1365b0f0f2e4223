"""XLA's account of a program: what its buffers hold at the peak, on GPUs and TPUs."""

from __future__ import annotations

import dataclasses
import re

from legroom.messages.reading.facts import clean
from legroom.messages.reading.sizes import dtype_name, parse_bytes, parse_shape

__all__ = ["Buffer", "Program"]

_KEPT = 32
_SHAPE = re.compile(r"([a-z][a-z0-9]{0,12})\[([0-9,]{0,200})\]")
_OP_NAME = re.compile(r'op_name=\\?"([^"\\]{1,400})')
# What JAX wraps around the scopes that people wrote.
_WRAPPER = re.compile(r"^(?:p?jit|pmap|vmap|jvp|transpose|remat|checkpoint|rematted_computation)\b")
# "Size:" is an ordinary word; a buffer's is followed by what it holds.
_BUFFER = {"shape", "label", "operator"}
_PARTS = {
    "parameter": "weights and inputs",
    "maybe_live_out": "results",
    "preallocated temp": "temporaries",
    "constant": "constants",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Buffer:
    """One buffer that is alive at the program's peak."""

    bytes: int
    shape: tuple[int, ...] | None
    dtype: str | None
    op: str | None


@dataclasses.dataclass(slots=True)
class Program:
    """What one program of XLA needs.

    Attributes:
        buffers: The largest, as far as they were printed.
        parts: Bytes by what they are for, in words.
        total_bytes: All of it.
        fragmentation_bytes: What lies unused between buffers.
    """

    buffers: list[Buffer] = dataclasses.field(default_factory=list)
    parts: dict[str, int] = dataclasses.field(default_factory=dict)
    total_bytes: int | None = None
    fragmentation_bytes: int | None = None

    def add(self, name: str, groups: dict[str, str], before: str) -> None:
        """Take one detail; one of another kind is passed over.

        Args:
            name: The detail's name.
            groups: What was read.
            before: What stands before it on its line.
        """
        size = parse_bytes(groups.get("size"))
        if name == "assigned":
            words = before.strip()
            if words == "total":
                self.total_bytes = size
            elif words in _PARTS and size:
                self.parts[_PARTS[words]] = size
        elif name == "fragmentation":
            self.fragmentation_bytes = size
        elif name == "hbm":
            self.total_bytes = size
        elif name == "hlo_temp":
            if size:
                self.parts["temporaries"] = size
            self.fragmentation_bytes = parse_bytes(groups.get("fragmentation"))
        elif name == "buffer" and size and groups.keys() & _BUFFER and len(self.buffers) < _KEPT:
            self.buffers.append(_buffer(size, groups))

    def __bool__(self) -> bool:
        return bool(self.buffers or self.parts or self.total_bytes)


def _buffer(size: int, groups: dict[str, str]) -> Buffer:
    shape = _SHAPE.search(groups.get("shape", ""))
    name = _OP_NAME.search(groups.get("operator", ""))
    op = None
    if name:
        scopes = [part for part in name.group(1).split("/") if not _WRAPPER.match(part)]
        op = clean("/".join(scopes), 120) or None
    return Buffer(
        bytes=size,
        shape=parse_shape(shape.group(2)) if shape else None,
        dtype=dtype_name(shape.group(1)) if shape else None,
        op=op,
    )
