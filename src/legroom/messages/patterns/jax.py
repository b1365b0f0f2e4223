"""What XLA says, under JAX and under TensorFlow's ``jit_compile``, on GPUs and TPUs."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern
from legroom.messages.sizes import SIZED

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        name="xla-out-of-memory",
        key="while trying to allocate",
        regex=re.compile(
            rf"while trying to allocate(?: (?P<size>{SIZED}))?"
            r"(?: with allocator (?P<allocator>\w{1,80}))?(?: on device [0-9]{1,4})?"
        ),
        finding="xla-resource-exhausted",
        fallback="jax",
        where="device",
    ),
    Pattern(
        name="xla-out-of-memory-allocating",
        key="ut of memory allocating",
        regex=re.compile(rf"ut of memory allocating(?: (?P<size>{SIZED}))?"),
        finding="xla-resource-exhausted",
        fallback="jax",
        where="device",
    ),
    Pattern(
        # An ordinal, but of what? It is a GPU's or a TPU's.
        name="xla-failed-to-allocate-request",
        key="ailed to allocate request for",
        regex=re.compile(
            rf"ailed to allocate request for(?: (?P<size>{SIZED}))?"
            r"(?: ?\((?P<bytes>[0-9]{1,20}) ?B(?:ytes)?\))?(?: on device ordinal [0-9]{1,4})?"
        ),
        finding="xla-resource-exhausted",
        fallback="jax",
        where="device",
    ),
    Pattern(
        name="xla-constant",
        key="ailed to allocate ",
        regex=re.compile(r"ailed to allocate (?P<bytes>[0-9]{1,20}) bytes for new constant"),
        finding="xla-resource-exhausted",
        fallback="jax",
        where="device",
    ),
    Pattern(
        name="tpu-memory-space",
        key="an out of memory in memory space",
        regex=re.compile(
            r"an out of memory in memory space (?P<memory_space>\w{1,20})\."
            rf"(?:\s{{1,80}}Used (?P<size>{SIZED}) of (?P<limit>{SIZED}) \w{{1,20}}\.)?"
        ),
        finding="tpu-ran-out-of-hbm",
        fallback="jax",
        where="device",
    ),
    Pattern(
        name="tpu-not-possible",
        key="Attempting to ",
        regex=re.compile(
            rf"Attempting to (?:allocate|reserve) (?P<size>{SIZED})"
            r"(?: at the (?:bottom|top) of memory)?\. That was not possible\."
            rf"(?: There are (?P<free>{SIZED}) free)?"
        ),
        after=(
            re.compile(rf"HBM capacity (?P<limit>{SIZED})"),
            re.compile(rf"Currently allocated: {{1,12}}(?P<in_use>{SIZED})"),
            re.compile(rf"Max free chunk {{1,30}}(?P<largest>{SIZED})"),
        ),
        finding="tpu-ran-out-of-hbm",
        fallback="jax",
        where="device",
    ),
    Pattern(
        name="tpu-would-exceed",
        key="would exceed memory (size=",
        regex=re.compile(r"would exceed memory \(size=(?P<limit>[0-9]{1,20})\)"),
        before=re.compile(r"Allocation \(size=(?P<bytes>[0-9]{1,20})\) $"),
        after=(re.compile(r"^[^\n]{0,300}space=(?P<memory_space>\w{1,20})"),),
        finding="tpu-ran-out-of-hbm",
        fallback="jax",
        where="device",
    ),
    Pattern(
        # A log that was cut: the report is there, the error is not.
        name="xla-buffer-assignment",
        key="BufferAssignment OOM Debugging",
        regex=re.compile(r"BufferAssignment OOM Debugging"),
        finding="xla-resource-exhausted",
        fallback="jax",
        where="device",
        weak=True,
    ),
)
