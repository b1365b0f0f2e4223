"""What holds a program's temporary memory at its fullest: by kind, and by layer. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable

from legroom.backends.jax.forecast.hlo import Buffer, Instruction, Program

__all__ = ["by_kind", "by_layer"]

_FORWARD, _BACKWARD = "jvp(", "transpose("
_NAME = re.compile(r"[\w.\-]+")


class _Paths:
    """From which op of JAX's each instruction comes; what XLA has added has none of its own."""

    def __init__(self, program: Program) -> None:
        self._computations = program.computations
        self._by_number = {
            one.number: one for listed in program.computations.values() for one in listed
        }
        self._known: dict[int, str] = {}

    def instruction(self, number: int) -> Instruction:
        return self._by_number[number]

    def of(self, number: int) -> str:
        """The path of an instruction; of what it computes, or is given, where it has none."""
        if number not in self._known:
            one = self._by_number.get(number)
            self._known[number] = ""  # for those that lead back to it
            if one is not None:
                self._known[number] = one.path or self._inside(one) or self._given(one)
        return self._known[number]

    def _inside(self, one: Instruction) -> str:
        paths = [
            inner.path
            for called in one.calls
            for inner in reversed(self._computations.get(called, ()))
            if inner.opcode != "parameter" and "/" in inner.path
        ]
        return paths[0] if paths else ""

    def _given(self, one: Instruction) -> str:
        return next((path for path in map(self.of, one.given) if path), "")


def by_kind(
    program: Program, live: Iterable[Buffer], weights: Collection[tuple[int, ...]]
) -> dict[str, int]:
    """The bytes of buffers by what they are for, as a breakdown names it.

    Args:
        program: The program.
        live: The buffers.
        weights: The shapes of the weights that are trained: gradients have them, too.
    """
    paths = _Paths(program)
    shapes = {_axes(shape) for shape in weights}
    trains = any(_FORWARD in one.path for each in program.computations.values() for one in each)
    kinds: Counter[str] = Counter()
    for buffer in live:
        path = paths.of(buffer.maker)
        kind = "activations"
        if trains and _FORWARD not in path and _BACKWARD not in path:
            kind = "workspace"
        if _BACKWARD in path and _axes(paths.instruction(buffer.maker).dims) in shapes:
            kind = "gradients"
        kinds[kind] += buffer.nbytes
    return dict(kinds)


def _axes(shape: Iterable[int]) -> tuple[int, ...]:
    """The axes of a shape, whatever their order: XLA puts them in one of its own."""
    return tuple(sorted(n for n in shape if n > 1))


def by_layer(program: Program, live: Iterable[Buffer], layers: Collection[str]) -> dict[str, int]:
    """The bytes of buffers by layer, as far as their paths tell.

    Args:
        program: The program.
        live: The buffers.
        layers: The names of the layers; of those inside of each other, the outermost counts.
    """
    paths, names = _Paths(program), frozenset(layers)
    found: Counter[str] = Counter()
    for buffer in live:
        path = paths.of(buffer.maker)
        layer = next((name for name in _NAME.findall(path) if name in names), None)
        if layer is not None:
            found[layer] += buffer.nbytes
    return dict(found)
