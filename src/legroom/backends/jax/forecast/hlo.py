"""A compiled program of XLA's and its memory plan, as far as predictions need them.

The field numbers are those of xla/service/hlo.proto.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from legroom.backends.jax.forecast.wire import fields, integers, text

__all__ = ["Buffer", "Instruction", "Program", "read_program"]


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A stretch of the program's temporary memory.

    Attributes:
        offset: Where it begins.
        nbytes: How long it is.
        maker: The instruction that writes it first, by its number.
    """

    offset: int
    nbytes: int
    maker: int


@dataclasses.dataclass(frozen=True)
class Instruction:
    """One instruction.

    Attributes:
        number: What it is called by.
        opcode: What it does.
        path: From which op of JAX's it comes, with the names of layers in it.
        dims: The axes of what it returns, where that is one array.
        given: The instructions whose results it is given.
        calls: The computations that it runs.
    """

    number: int
    opcode: str
    path: str
    dims: tuple[int, ...]
    given: tuple[int, ...]
    calls: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        entry: The number of its main computation.
        computations: The instructions of each computation, in the order in which they run.
        buffers: Its temporary memory.
        temporary: How many bytes that is.
    """

    entry: int
    computations: Mapping[int, Sequence[Instruction]]
    buffers: Sequence[Buffer]
    temporary: int


def read_program(compiled: Any) -> Program | None:
    """Read a program that JAX has compiled; None where it does not tell enough.

    Args:
        compiled: As `jax.jit(function).lower(…).compile()` returns it.
    """
    plan = getattr(compiled.memory_analysis(), "serialized_buffer_assignment_proto", b"")
    try:
        (module,) = compiled.runtime_executable().hlo_modules()
        program = module.as_serialized_hlo_module_proto()
        return _read(fields(program), fields(plan)) if plan else None
    except (AttributeError, ValueError, KeyError, TypeError, RuntimeError):
        return None  # another version's


def _read(module: dict[int, Any], plan: dict[int, Any]) -> Program:
    order = {}
    for sequence in fields(module[7][-1])[1] if 7 in module else ():
        assert isinstance(sequence, bytes)
        entry = fields(sequence)
        (inner,) = entry[2]
        assert isinstance(inner, bytes)
        order[entry[1][-1]] = list(integers(fields(inner).get(1, [])))
    computations = {}
    for part in module[3]:
        computation = fields(part)
        number = int(computation[5][-1])
        listed = {one.number: one for one in map(_instruction, computation[2])}
        computations[number] = [listed[k] for k in order.get(number, listed)]
    makers = {}
    for part in plan.get(1, ()):
        buffer = fields(part)
        place = fields(buffer[3][-1])  # type: ignore[arg-type]
        makers[_number(buffer, 1)] = _number(place, 4)
    buffers, temporary = [], 0
    for part in plan.get(3, ()):
        allocation = fields(part)
        # What the program is called with, what it returns, what it knows, and its stack.
        if any(_number(allocation, which) for which in (3, 5, 7, 12)):
            continue
        for piece in allocation.get(9, ()):
            assigned = fields(piece)  # type: ignore[arg-type]
            offset = temporary + _number(assigned, 2)
            buffers.append(Buffer(offset, _number(assigned, 3), makers[_number(assigned, 1)]))
        temporary += _number(allocation, 2)
    return Program(int(module[6][-1]), computations, buffers, temporary)


def _instruction(part: Any) -> Instruction:
    found = fields(part)
    metadata = fields(found[7][-1]) if 7 in found else {}  # type: ignore[arg-type]
    shape = fields(found[3][-1])  # type: ignore[arg-type]
    return Instruction(
        number=_number(found, 35),
        opcode=text(found.get(2)),
        path=text(metadata.get(2)),
        dims=tuple(integers(shape.get(3, []))),
        given=tuple(integers(found.get(36, []))),
        calls=tuple(integers(found.get(38, []))),
    )


def _number(message: dict[int, list[int | bytes]], which: int) -> int:
    value = message[which][-1] if which in message else 0
    assert isinstance(value, int)
    return value
