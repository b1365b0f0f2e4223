"""What PyTorch says: four wordings for its caching allocator, and those of its other devices."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern, not_in_code
from legroom.messages.sizes import SIZED

__all__ = ["PATTERNS"]

# "set this to avoid CUDA out of memory errors" is no failure.
_NOT_ADVICE = re.compile(
    r"^(?![^\n]{0,400}\b(?:avoid|prevent|reduce|fix|handle|catch|against|possible|potential|if|may|might)\b)"
)

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
            re.compile(
                r"(?P<device_kind>[A-Z]{2,5}) {1,2}(?P<ordinal>[0-9]{1,4})(?:;| has a total)"
            ),
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
        # The allocator of cudaMallocAsync has words of its own.
        name="torch-async-out-of-memory",
        key="would exceed allowed memory",
        regex=re.compile(r"would exceed allowed memory"),
        before=re.compile(r"Allocation on device (?P<ordinal>[0-9]{1,4}) $"),
        after=(
            re.compile(rf"Currently allocated {{0,20}}: (?P<in_use>{SIZED})"),
            re.compile(rf"Requested {{0,30}}: (?P<size>{SIZED})"),
            re.compile(rf"Device limit {{0,30}}: (?P<limit>{SIZED})"),
            re.compile(rf"Free \(according to CUDA\) {{0,20}}: (?P<free>{SIZED})"),
        ),
        finding="pytorch-cuda-out-of-memory",
        framework="torch",
        where="device",
    ),
    Pattern(
        name="torch-allocation-on-device",
        key="Allocation on device",
        regex=re.compile(r"Allocation on device(?: (?P<ordinal>[0-9]{1,4}))?[ \t]{0,4}(?=\n|$)"),
        only_after=re.compile(r"OutOfMemoryError: $"),
        finding="pytorch-cuda-out-of-memory",
        framework="torch",
        where="device",
    ),
    Pattern(
        name="torch-directml",
        key="not enough GPU video memory",
        regex=re.compile(r"not enough GPU video memory"),
        before=re.compile(
            r"Could not allocate tensor with (?P<bytes>[0-9]{1,20}) bytes\. There is $"
        ),
        finding="pytorch-cuda-out-of-memory",
        framework="torch",
        where="device",
    ),
    Pattern(
        name="torch-mps-buffer",
        key="Invalid buffer size: ",
        regex=re.compile(rf"Invalid buffer size: (?P<size>{SIZED})"),
        finding="pytorch-mps-out-of-memory",
        framework="torch",
        where="device",
        device="MPS:0",
        binary=True,
    ),
    Pattern(
        name="torch-no-batch-fits",
        key="No executable batch size found",
        regex=re.compile(r"No executable batch size found"),
        finding="pytorch-cuda-out-of-memory",
        framework="torch",
        weak=True,
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
        key=" error: out of memory",
        regex=re.compile(r" error: out of memory"),
        only_after=re.compile(r"(?:CUDA|HIP|XPU)(?: driver)?$"),
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
        only_after=_NOT_ADVICE,
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
        name="torch-memalign",
        key="posix_memalign(",
        regex=re.compile(r"posix_memalign\([^\n]{0,80}\) == 0\. 12 vs 0"),
        finding="pytorch-cpu-allocator",
        framework="torch",
        where="host",
        device="CPU:0",
    ),
    Pattern(
        name="torch-mmap",
        key="unable to mmap ",
        regex=re.compile(
            r"unable to mmap (?P<bytes>[0-9]{1,20}) bytes from file [^\n]{0,400}Cannot allocate"
        ),
        finding="python-memory-error",
        framework="torch",
        where="host",
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
        name="torch-worker-gone",
        key="exited unexpectedly",
        regex=re.compile(r"exited unexpectedly"),
        only_after=re.compile(r"DataLoader worker \(pid[^\n]{0,80}\) $"),
        finding="segmentation-fault-or-abort",
        kind="death",
        framework="torch",
        is_oom=None,
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
        # AWS Batch calls a container that was killed so, too.
        regex=re.compile(r"OutOfMemoryError(?=[:\s'\"(]|$)(?!: Container killed)"),
        only_after=not_in_code(r"(?:^|[\s'\"(\[:<])(?:torch\.(?:cuda\.)?)?"),
        finding="pytorch-cuda-out-of-memory",
        fallback="torch",
        weak=True,
    ),
)
