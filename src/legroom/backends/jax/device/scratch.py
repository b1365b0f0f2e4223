"""The memory that kernels on a CPU take for themselves, which XLA's own figures leave out.

Convolutions and products of matrices that are left to Eigen have their operands packed first: of a
convolution each window that the kernel is moved over. Where there is no memory for that, Eigen ends
the process. Those of YNNPACK, the other library, raise an error.
"""

from __future__ import annotations

import heapq
import math
import re
from collections.abc import Iterator

__all__ = ["scratch_bytes"]

# As many may run at once: a layer's gradients by its weights and by its inputs.
_AT_ONCE = 2
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) .*\{$")
_MADE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = ([a-z]+\d*)\w*\[([\d,]*)\]\S* ([\w\-]+)\((.*)")
_OPERAND = re.compile(r"%([\w.\-]+)")
_YNNPACK = re.compile(r"calls=%?([\w.\-]+).*__ynn_fusion")
_BITS = re.compile(r"\d+")
_WINDOW = re.compile(r"window=\{size=([\dx]+)")
_LABELS = re.compile(r"dim_labels=\w+_(\w+)->(\w+)")
_GROUPS = re.compile(r"feature_group_count=(\d+)")

_Shape = tuple[int, list[int]]  # bytes of an entry, and the axes


def scratch_bytes(program: str) -> int:
    """The most that the kernels of a program take at once.

    Args:
        program: The compiled program, as XLA prints it.
    """
    return sum(heapq.nlargest(_AT_ONCE, _packed(program)))


def _packed(program: str) -> Iterator[int]:
    by_library = set(_YNNPACK.findall(program))
    shapes: dict[str, _Shape] = {}
    inside = ""
    for line in program.splitlines():
        if opened := _COMPUTATION.match(line):
            inside = opened[1]
        elif made := _MADE.match(line):
            name, kind, axes, op, rest = made.groups()
            shape = shapes[name] = (_entry_bytes(kind), [int(n) for n in axes.split(",") if n])
            if op in ("convolution", "dot") and inside not in by_library:
                operands = [shapes.get(x, (0, [])) for x in _OPERAND.findall(rest)[:2]]
                if op == "dot":
                    yield sum(size * math.prod(each) for size, each in operands)
                else:
                    yield _windows(shape, operands, rest)


def _windows(made: _Shape, operands: list[_Shape], rest: str) -> int:
    """All windows that the kernel is moved over, side by side."""
    window, labels, groups = (x.search(rest) for x in (_WINDOW, _LABELS, _GROUPS))
    if labels is None or len(operands) < 2:
        return 0
    size, axes = made
    features = operands[1][1][labels[1].index("i")]
    each = math.prod(int(n) for n in window[1].split("x")) if window else 1
    moved = math.prod(axes) // max(1, axes[labels[2].index("f")])
    return size * moved * each * features * (int(groups[1]) if groups else 1)


def _entry_bytes(kind: str) -> int:
    bits = _BITS.search(kind)
    return int(bits[0]) // 8 if bits else 1
