"""What is in a program's temporary memory while it runs, and when that is most. Pure.

XLA's plan tells where each buffer lies, but not until when it is needed: that follows from who is
given it. Buffers that share their memory, because one is written over the other, count once.
"""

from __future__ import annotations

from collections.abc import Sequence

from legroom.backends.jax.forecast.hlo import Buffer, Instruction, Program

__all__ = ["Moment", "live_buffers"]

# Their results are the memory that they are given.
_PASS_ON = frozenset(
    ("bitcast", "get-tuple-element", "tuple", "while", "call", "conditional", "opt-barrier",
     "copy-done", "async-done", "async-update", "add-dependency", "domain")
)  # fmt: skip
# Bodies of these run while they do; those of others are what they compute.
_RUN = frozenset(("while", "call", "conditional", "async-start"))
# Sums count shared memory twice: so many of the largest are looked at closer.
_CLOSER = 24

Moment = tuple[int, str, list[Buffer]]


def live_buffers(program: Program) -> tuple[Moment, list[tuple[str, int]]]:
    """The moment at which a program's buffers take most, and what they take all along.

    Returns:
        The moment: the bytes, the op, and the buffers; and each op with the bytes after it.
    """
    moments = _moments(program, program.entry)
    sums = [sum(buffer.nbytes for buffer in live) for _, live in moments]
    largest = sorted(range(len(moments)), key=lambda k: sums[k], reverse=True)[:_CLOSER]
    best: Moment = (0, "", [])
    for k in largest:
        op, live = moments[k]
        taken = _union(live)
        if taken > best[0]:
            best = (taken, op, live)
    line = [(op, min(size, best[0])) for (op, _), size in zip(moments, sums, strict=True)]
    return best, line


def _moments(program: Program, number: int) -> list[tuple[str, list[Buffer]]]:
    """The buffers that are live while each instruction of a computation runs, in order."""
    instructions = program.computations[number]
    last = _last_uses(instructions)
    ends: dict[int, list[Buffer]] = {}
    begins: dict[int, list[Buffer]] = {}
    places = {one.number: place for place, one in enumerate(instructions)}
    for buffer in program.buffers:
        place = places.get(buffer.maker)
        if place is not None:
            begins.setdefault(place, []).append(buffer)
            ends.setdefault(last[place], []).append(buffer)
    live: dict[int, Buffer] = {}
    found: list[tuple[str, list[Buffer]]] = []
    for place, one in enumerate(instructions):
        live.update((id(buffer), buffer) for buffer in begins.get(place, ()))
        here = list(live.values())
        inside = [
            moment
            for called in (one.calls if one.opcode in _RUN else ())
            for moment in _moments(program, called)
        ]
        if inside:
            op, most = max(inside, key=lambda moment: sum(each.nbytes for each in moment[1]))
            found.append((op, [*here, *most]))
        elif here or found:
            found.append((one.path or one.opcode, here))
        for buffer in ends.get(place, ()):
            live.pop(id(buffer), None)
    return found


def _last_uses(instructions: Sequence[Instruction]) -> list[int]:
    """For each instruction, the place of the last one that needs its result."""
    places = {one.number: place for place, one in enumerate(instructions)}
    last = list(range(len(instructions)))
    for place in reversed(range(len(instructions))):
        one = instructions[place]
        until = last[place] if one.opcode in _PASS_ON else place
        for given in one.given:
            where = places.get(given)
            if where is not None:
                last[where] = max(last[where], until)
    return last


def _union(buffers: Sequence[Buffer]) -> int:
    """The bytes that buffers take together."""
    taken = end = 0
    for buffer in sorted(buffers, key=lambda each: each.offset):
        begin = max(buffer.offset, end)
        end = max(end, buffer.offset + buffer.nbytes)
        taken += max(0, end - begin)
    return taken
