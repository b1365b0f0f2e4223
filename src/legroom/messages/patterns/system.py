"""What the C++ runtime, the Java runtime, Windows and the Linux kernel say."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern, not_in_code
from legroom.messages.sizes import SIZE, SIZED

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        name="java-out-of-memory",
        key="java.lang.OutOfMemoryError",
        regex=re.compile(r"java\.lang\.OutOfMemoryError"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        # RAPIDS: the same name, for the GPU's memory.
        name="rapids-bad-alloc",
        key="std::bad_alloc: out_of_memory",
        regex=re.compile(r"std::bad_alloc: out_of_memory"),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        name="cupy-out-of-memory",
        key="cupy.cuda.memory.OutOfMemoryError",
        regex=re.compile(
            rf"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating (?P<size>{SIZED})"
            rf"(?: \(allocated so far: (?P<in_use>{SIZED}))?"
        ),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        name="paddle-out-of-memory",
        key="Out of memory error on GPU",
        regex=re.compile(
            rf"Out of memory error on GPU (?P<ordinal>[0-9]{{1,4}})\. Cannot allocate "
            rf"(?P<size>{SIZED}) memory on GPU [0-9]{{1,4}}"
            rf"(?:, (?P<in_use>{SIZED}) memory has been allocated)?"
            rf"(?: and available memory is only (?P<free>{SIZED}))?"
        ),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
        binary=True,
    ),
    Pattern(
        name="onnxruntime-arena",
        key="ailed to allocate memory for requested buffer",
        regex=re.compile(
            r"ailed to allocate memory for requested buffer of size (?P<bytes>[0-9]{1,20})"
        ),
        finding="failed-to-allocate-memory",
        framework="system",
    ),
    Pattern(
        name="mlx-metal-buffer",
        key="greater than the maximum allowed buffer size",
        regex=re.compile(
            r"greater than the maximum allowed buffer size(?: of (?P<limit>[0-9]{1,20}) bytes)?"
        ),
        before=re.compile(r"Attempting to allocate (?P<bytes>[0-9]{1,20}) bytes which is $"),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        # What a program written in Rust (polars, tokenizers) dies with.
        name="rust-allocation",
        key="emory allocation of ",
        regex=re.compile(r"emory allocation of (?P<bytes>[0-9]{1,20}) bytes failed"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        name="vulkan-allocation",
        key="evice memory allocation of size ",
        regex=re.compile(r"evice memory allocation of size (?P<bytes>[0-9]{1,20}) failed"),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        name="vulkan-out-of-device-memory",
        key="OutOfDeviceMemory",
        regex=re.compile(r"OutOfDeviceMemory"),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        name="opencl-allocation",
        key="MEM_OBJECT_ALLOCATION_FAILURE",
        regex=re.compile(r"MEM_OBJECT_ALLOCATION_FAILURE"),
        finding="cuda-error-out-of-memory",
        framework="system",
        where="device",
    ),
    Pattern(
        name="arrow-malloc",
        key="alloc of size ",
        regex=re.compile(r"alloc of size (?P<bytes>[0-9]{1,20}) failed"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        name="opencv-insufficient-memory",
        key="Insufficient memory) Failed to allocate ",
        regex=re.compile(r"Insufficient memory\) Failed to allocate (?P<bytes>[0-9]{1,20}) bytes"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        name="javascript-heap",
        key="JavaScript heap out of memory",
        regex=re.compile(r"JavaScript heap out of memory"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        name="ray-object-store-full",
        key="ObjectStoreFullError",
        regex=re.compile(r"ObjectStoreFullError"),
        only_after=not_in_code(r"(?:^|[\s.'\"(])"),
        finding="shared-memory",
        framework="system",
        where="host",
    ),
    Pattern(
        name="std-bad-alloc",
        key="std::bad_alloc",
        regex=re.compile(r"std::bad_alloc(?!: out_of_memory)"),
        finding="python-memory-error",
        fallback="system",
        where="host",
    ),
    Pattern(
        name="cannot-allocate-memory",
        key="annot allocate memory",
        regex=re.compile(r"annot allocate memory"),
        finding="python-memory-error",
        fallback="system",
        where="host",
        weak=True,
    ),
    Pattern(
        name="windows-paging-file",
        key="paging file is too small",
        regex=re.compile(r"paging file is too small"),
        finding="python-memory-error",
        fallback="system",
        where="host",
    ),
    Pattern(
        # The kernel's own line. Its kB are 1024 bytes.
        name="kernel-killed-process",
        key="illed process ",
        regex=re.compile(
            r"illed process [0-9]{1,10},? (?:\((?P<process>[^)\n]{1,60})\))?,?"
            r"(?: UID [0-9]{1,10},)?"
        ),
        after=(re.compile(rf"^[^\n]{{0,200}}?anon-rss: ?(?P<in_use>{SIZE})"),),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        binary=True,
    ),
    Pattern(
        name="kernel-oom-reaper",
        key="oom_reaper: reaped process ",
        regex=re.compile(r"oom_reaper: reaped process [0-9]{1,10} \((?P<process>[^)\n]{1,60})\)"),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
    ),
    Pattern(
        name="kernel-oom-kill",
        key="oom-kill",
        regex=re.compile(r"oom-kill(?:er|:constraint)"),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        weak=True,
    ),
    Pattern(
        name="kernel-out-of-memory",
        key="ut of memory: Kill",
        regex=re.compile(r"ut of memory: Kill(?:ed)? process"),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        weak=True,
    ),
)
