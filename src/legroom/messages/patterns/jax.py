"""What XLA says, under JAX and under TensorFlow's ``jit_compile``, on GPUs and TPUs."""

from __future__ import annotations

from legroom.messages.patterns.pattern import wordings
from legroom.messages.reading.sizes import SIZED

__all__ = ["PATTERNS"]

_xla_resource_exhausted = wordings("xla-resource-exhausted", fallback="jax", where="device")
_tpu_ran_out_of_hbm = wordings("tpu-ran-out-of-hbm", fallback="jax", where="device")

PATTERNS = (
    _xla_resource_exhausted(
        "xla-out-of-memory",
        "while trying to allocate",
        (
            rf"while trying to allocate(?: (?P<size>{SIZED}))?"
            r"(?: with allocator (?P<allocator>\w{1,80}))?(?: on device [0-9]{1,4})?"
        ),
    ),
    _xla_resource_exhausted(
        "xla-out-of-memory-allocating",
        "ut of memory allocating",
        rf"ut of memory allocating(?: (?P<size>{SIZED}))?",
    ),
    # An ordinal, but of what? It is a GPU's or a TPU's.
    _xla_resource_exhausted(
        "xla-failed-to-allocate-request",
        "ailed to allocate request for",
        (
            rf"ailed to allocate request for(?: (?P<size>{SIZED}))?"
            r"(?: ?\((?P<bytes>[0-9]{1,20}) ?B(?:ytes)?\))?(?: on device ordinal [0-9]{1,4})?"
        ),
    ),
    _xla_resource_exhausted(
        "xla-constant",
        "ailed to allocate ",
        r"ailed to allocate (?P<bytes>[0-9]{1,20}) bytes for new constant",
    ),
    _tpu_ran_out_of_hbm(
        "tpu-memory-space",
        "an out of memory in memory space",
        (
            r"an out of memory in memory space (?P<memory_space>\w{1,20})\."
            rf"(?:\s{{1,80}}Used (?P<size>{SIZED}) of (?P<limit>{SIZED}) \w{{1,20}}\.)?"
        ),
    ),
    _tpu_ran_out_of_hbm(
        "tpu-not-possible",
        "Attempting to ",
        (
            rf"Attempting to (?:allocate|reserve) (?P<size>{SIZED})"
            r"(?: at the (?:bottom|top) of memory)?\. That was not possible\."
            rf"(?: There are (?P<free>{SIZED}) free)?"
        ),
        after=[
            rf"HBM capacity (?P<limit>{SIZED})",
            rf"Currently allocated: {{1,12}}(?P<in_use>{SIZED})",
            rf"Max free chunk {{1,30}}(?P<largest>{SIZED})",
        ],
    ),
    _tpu_ran_out_of_hbm(
        "tpu-would-exceed",
        "would exceed memory (size=",
        r"would exceed memory \(size=(?P<limit>[0-9]{1,20})\)",
        before=r"Allocation \(size=(?P<bytes>[0-9]{1,20})\) $",
        after=[r"^[^\n]{0,300}space=(?P<memory_space>\w{1,20})"],
    ),
    # A log that was cut: the report is there, the error is not.
    _xla_resource_exhausted("xla-buffer-assignment", "BufferAssignment OOM Debugging", weak=True),
)
