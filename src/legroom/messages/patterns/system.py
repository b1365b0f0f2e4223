"""What the C++ runtime, the Java runtime, Windows and the Linux kernel say."""

from __future__ import annotations

from legroom.messages.patterns.pattern import not_in_code, wordings
from legroom.messages.reading.sizes import SIZE, SIZED

__all__ = ["PATTERNS"]

_cuda_error_out_of_memory = wordings("cuda-error-out-of-memory", framework="system", where="device")
_python_memory_error = wordings("python-memory-error", framework="system", where="host")
_killed = wordings("killed", framework="system", kind="death", where="host")
_python_memory_error_host = wordings("python-memory-error", fallback="system", where="host")
_failed_to_allocate_memory = wordings("failed-to-allocate-memory", framework="system")
_shared_memory = wordings("shared-memory", framework="system", where="host")

PATTERNS = (
    _python_memory_error("java-out-of-memory", "java.lang.OutOfMemoryError"),
    # RAPIDS: the same name, for the GPU's memory.
    _cuda_error_out_of_memory("rapids-bad-alloc", "std::bad_alloc: out_of_memory"),
    _cuda_error_out_of_memory(
        "cupy-out-of-memory",
        "cupy.cuda.memory.OutOfMemoryError",
        (
            rf"cupy\.cuda\.memory\.OutOfMemoryError: Out of memory allocating (?P<size>{SIZED})"
            rf"(?: \(allocated so far: (?P<in_use>{SIZED}))?"
        ),
    ),
    _cuda_error_out_of_memory(
        "paddle-out-of-memory",
        "Out of memory error on GPU",
        (
            rf"Out of memory error on GPU (?P<ordinal>[0-9]{{1,4}})\. Cannot allocate "
            rf"(?P<size>{SIZED}) memory on GPU [0-9]{{1,4}}"
            rf"(?:, (?P<in_use>{SIZED}) memory has been allocated)?"
            rf"(?: and available memory is only (?P<free>{SIZED}))?"
        ),
        binary=True,
    ),
    _failed_to_allocate_memory(
        "onnxruntime-arena",
        "ailed to allocate memory for requested buffer",
        r"ailed to allocate memory for requested buffer of size (?P<bytes>[0-9]{1,20})",
    ),
    _cuda_error_out_of_memory(
        "mlx-metal-buffer",
        "greater than the maximum allowed buffer size",
        r"greater than the maximum allowed buffer size(?: of (?P<limit>[0-9]{1,20}) bytes)?",
        before=r"Attempting to allocate (?P<bytes>[0-9]{1,20}) bytes which is $",
    ),
    # What a program written in Rust (polars, tokenizers) dies with.
    _python_memory_error(
        "rust-allocation",
        "emory allocation of ",
        r"emory allocation of (?P<bytes>[0-9]{1,20}) bytes failed",
    ),
    _cuda_error_out_of_memory(
        "vulkan-allocation",
        "evice memory allocation of size ",
        r"evice memory allocation of size (?P<bytes>[0-9]{1,20}) failed",
    ),
    _cuda_error_out_of_memory("vulkan-out-of-device-memory", "OutOfDeviceMemory"),
    _cuda_error_out_of_memory("opencl-allocation", "MEM_OBJECT_ALLOCATION_FAILURE"),
    _python_memory_error(
        "arrow-malloc", "alloc of size ", r"alloc of size (?P<bytes>[0-9]{1,20}) failed"
    ),
    _python_memory_error(
        "opencv-insufficient-memory",
        "Insufficient memory) Failed to allocate ",
        r"Insufficient memory\) Failed to allocate (?P<bytes>[0-9]{1,20}) bytes",
    ),
    _python_memory_error("javascript-heap", "JavaScript heap out of memory"),
    _shared_memory(
        "ray-object-store-full", "ObjectStoreFullError", only_after=not_in_code(r"(?:^|[\s.'\"(])")
    ),
    _python_memory_error_host(
        "std-bad-alloc", "std::bad_alloc", r"std::bad_alloc(?!: out_of_memory)"
    ),
    _python_memory_error_host("cannot-allocate-memory", "annot allocate memory", weak=True),
    _python_memory_error_host("windows-paging-file", "paging file is too small"),
    # The kernel's own line. Its kB are 1024 bytes.
    _killed(
        "kernel-killed-process",
        "illed process ",
        (
            r"illed process [0-9]{1,10},? (?:\((?P<process>[^)\n]{1,60})\))?,?"
            r"(?: UID [0-9]{1,10},)?"
        ),
        after=[rf"^[^\n]{{0,200}}?anon-rss: ?(?P<in_use>{SIZE})"],
        binary=True,
    ),
    _killed(
        "kernel-oom-reaper",
        "oom_reaper: reaped process ",
        r"oom_reaper: reaped process [0-9]{1,10} \((?P<process>[^)\n]{1,60})\)",
    ),
    _killed("kernel-oom-kill", "oom-kill", r"oom-kill(?:er|:constraint)", weak=True),
    _killed(
        "kernel-out-of-memory",
        "ut of memory: Kill",
        r"ut of memory: Kill(?:ed)? process",
        weak=True,
    ),
)
