"""What PyTorch says: four wordings for its caching allocator, and those of its other devices."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern
from legroom.messages.sizes import SIZED

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        # 0.4 … 1.12: "(GPU 0; 10.92 GiB total capacity; … already allocated; … free; … cached)"
        # 1.13 … 2.0: the same with "reserved in total by PyTorch"
        # 2.1:        "GPU 0 has a total capacty of … of which … is free", misspelled
        # since 2.2:  the same, spelled right; since 2.9 with "… allowed" where a cap was set
        name="torch-cuda-out-of-memory",
        key="Tried to allocate ",
        regex=re.compile(rf"Tried to allocate (?P<size>{SIZED})?(?! on (?:private|shared) pool)"),
        after=(
            re.compile(r"(?P<device_kind>[A-Z]{2,5}) (?P<ordinal>[0-9]{1,4})(?:;| has a total)"),
            re.compile(rf"(?P<limit>{SIZED}) allowed"),
            re.compile(rf"(?P<limit>{SIZED}) total capacity"),
            re.compile(rf"total capac(?:i?t)?y of (?P<limit>{SIZED})"),
            re.compile(rf"(?P<in_use>{SIZED}) (?:already allocated|is allocated by PyTorch)"),
            re.compile(rf"(?P<free>{SIZED}) (?:is )?free"),
            re.compile(rf"(?P<unallocated>{SIZED}) is reserved by PyTorch but unallocated"),
            re.compile(rf"(?P<unallocated>{SIZED}) cached"),
            re.compile(rf"(?P<reserved>{SIZED}) reserved in total"),
            re.compile(rf"this process has (?P<process_size>{SIZED}) memory in use"),
        ),
        finding="pytorch-cuda-out-of-memory",
        framework="torch",
        where="device",
    ),
    Pattern(
        name="torch-mps-out-of-memory",
        key="MPS backend out of memory",
        regex=re.compile(r"MPS backend out of memory"),
        after=(
            re.compile(rf"MPS allocated: (?P<in_use>{SIZED})"),
            re.compile(rf"max allowed: (?P<limit>{SIZED})"),
            re.compile(rf"Tried to allocate (?P<size>{SIZED})"),
        ),
        finding="pytorch-mps-out-of-memory",
        framework="torch",
        where="device",
        device="MPS:0",
        binary=True,
    ),
    Pattern(
        name="torch-cuda-error",
        key="CUDA error: out of memory",
        regex=re.compile(r"CUDA error: out of memory"),
        finding="pytorch-cuda-out-of-memory",
        fallback="torch",
        where="device",
    ),
    Pattern(
        name="torch-cuda-runtime-error",
        key="cuda runtime error (2)",
        regex=re.compile(r"cuda runtime error \(2\) ?: out of memory"),
        finding="pytorch-cuda-out-of-memory",
        fallback="torch",
        where="device",
    ),
    Pattern(
        # "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
        name="torch-cuda-library",
        key=" error: CU",
        regex=re.compile(r" error: CU[A-Z]{2,8}_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)"),
        only_after=re.compile(r"(?:CUDA|cuDNN)$"),
        finding="cudnn-failed-to-initialize",
        framework="torch",
        where="device",
        stage=1,
    ),
    Pattern(
        name="torch-cuda-short",
        key="CUDA out of memory",
        regex=re.compile(r"CUDA out of memory"),
        finding="pytorch-cuda-out-of-memory",
        fallback="torch",
        where="device",
        weak=True,
    ),
    Pattern(
        name="torch-cpu-allocator",
        key="memory: you tried to allocate",
        regex=re.compile(rf"memory: you tried to allocate(?: (?P<size>{SIZED}))?"),
        finding="pytorch-cpu-allocator",
        framework="torch",
        where="host",
        device="CPU:0",
        # "you tried to allocate 3GB. Buy new RAM!" divided by 2**30
        binary=True,
    ),
    Pattern(
        name="torch-worker-killed",
        key="is killed by signal: Killed",
        regex=re.compile(r"is killed by signal: Killed"),
        finding="killed",
        kind="death",
        framework="torch",
        where="host",
    ),
    Pattern(
        name="torch-shared-memory",
        key="shared memory",
        regex=re.compile(
            r"shared memory(?:\. Please try to raise your shared memory limit| \(shm\))"
        ),
        finding="shared-memory",
        framework="torch",
        where="host",
    ),
    Pattern(
        name="torch-out-of-memory-error",
        key="OutOfMemoryError",
        regex=re.compile(r"OutOfMemoryError(?=[:\s'\"(]|$)"),
        only_after=re.compile(r"(?:^|[\s'\"(\[:<])(?:torch\.(?:cuda\.)?)?$"),
        finding="pytorch-cuda-out-of-memory",
        fallback="torch",
        weak=True,
    ),
)
