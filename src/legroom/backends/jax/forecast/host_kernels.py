"""What kernels on a CPU take beside what XLA plans for them.

They come from a library (YNNPACK), which copies what it is given into an order of its own, in
memory that XLA's figures do not have; kernels that can run side by side do so at the same time. How
much that comes to was measured, by the largest tensor that such a kernel is given. On a GPU such
memory is among XLA's own.
"""

from __future__ import annotations

import math
import re
from typing import Any

__all__ = ["scratch_bytes"]

# Measured on jaxlib 0.10: ResNet50, MobileNetV2 and small nets, with two cores. In units of the
# largest tensor; about, and at most.
_WITH_CONVOLUTIONS = (2.5, 5.5)
_WITHOUT = (0.6, 1.3)
_SIZES = {"pred": 1, "s8": 1, "u8": 1, "f16": 2, "bf16": 2, "s16": 2, "u16": 2,
          "s64": 8, "u64": 8, "f64": 8, "c64": 8, "c128": 16}  # fmt: skip
_INSTRUCTION = re.compile(
    r"^\s*(?:ROOT )?%(?P<name>[\w.\-]+) = (?P<shape>\(.*?\)|\S+) (?P<op>[\w\-]+)\((?P<given>.*)$"
)
_NAME = re.compile(r"%([\w.\-]+)")
_SHAPE = re.compile(r"(\w+)\[([\d,]*)\]")


def scratch_bytes(program: Any) -> tuple[int, int]:
    """What the kernels of a program take: about, and at most.

    Args:
        program: The program, compiled for a CPU.
    """
    shapes: dict[str, int] = {}
    largest, convolutions = 0, False
    for line in program.as_text().splitlines():
        found = _INSTRUCTION.match(line)
        if found is None:
            continue
        shapes[found["name"]] = _bytes_of(found["shape"])
        convolves = found["op"] == "convolution"
        convolutions = convolutions or convolves
        if convolves or "__ynn_fusion" in found["given"]:
            given = _NAME.findall(found["given"].partition("), ")[0])
            largest = max([largest, *(shapes.get(name, 0) for name in given)])
    about, most = _WITH_CONVOLUTIONS if convolutions else _WITHOUT
    return int(about * largest), int(most * largest)


def _bytes_of(shape: str) -> int:
    """The largest array in a shape as HLO writes it."""
    return max(
        (
            math.prod(int(n) for n in axes.split(",") if n) * _SIZES.get(kind, 4)
            for kind, axes in _SHAPE.findall(shape)
        ),
        default=0,
    )
