"""What PyTorch says: four wordings for its caching allocator, and those of its other devices."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import not_in_code, wordings
from legroom.messages.reading.sizes import SIZED

__all__ = ["PATTERNS"]

# "set this to avoid CUDA out of memory errors" is no failure.
_NOT_ADVICE = re.compile(
    r"^(?![^\n]{0,400}\b(?:avoid|prevent|reduce|fix|handle|catch|against|possible|potential|if|may|might)\b)"
)

_pytorch_cuda_out_of_memory = wordings(
    "pytorch-cuda-out-of-memory", framework="torch", where="device"
)
_pytorch_cuda_out_of_memory_device = wordings(
    "pytorch-cuda-out-of-memory", fallback="torch", where="device"
)
_pytorch_mps_out_of_memory = wordings(
    "pytorch-mps-out-of-memory", framework="torch", where="device"
)
_pytorch_cpu_allocator = wordings("pytorch-cpu-allocator", framework="torch", where="host")
_pytorch_cuda_out_of_memory_torch = wordings("pytorch-cuda-out-of-memory", framework="torch")
_cudnn_failed_to_initialize = wordings(
    "cudnn-failed-to-initialize", framework="torch", where="device"
)
_python_memory_error = wordings("python-memory-error", framework="torch", where="host")
_killed = wordings("killed", framework="torch", kind="death", where="host")
_segmentation_fault_or_abort = wordings(
    "segmentation-fault-or-abort", framework="torch", kind="death"
)
_shared_memory = wordings("shared-memory", framework="torch", where="host")
_pytorch_cuda_out_of_memory_unplaced = wordings("pytorch-cuda-out-of-memory", fallback="torch")

PATTERNS = (
    # 0.4 … 1.12: "(GPU 0; 10.92 GiB total capacity; … already allocated; … free; … cached)"
    # 1.13 … 2.0: the same with "reserved in total by PyTorch"
    # 2.1:        "GPU 0 has a total capacty of … of which … is free", misspelled
    # since 2.2:  the same, spelled right; since 2.9 with "… allowed" where a cap was set
    _pytorch_cuda_out_of_memory(
        "torch-cuda-out-of-memory",
        "Tried to allocate ",
        rf"Tried to allocate (?P<size>{SIZED})?(?! on (?:private|shared) pool)",
        after=[
            r"(?P<device_kind>[A-Z]{2,5}) {1,2}(?P<ordinal>[0-9]{1,4})(?:;| has a total)",
            rf"(?P<limit>{SIZED}) allowed",
            rf"(?P<limit>{SIZED}) total capacity",
            rf"total capac(?:i?t)?y of (?P<limit>{SIZED})",
            rf"(?P<in_use>{SIZED}) (?:already allocated|is allocated by PyTorch)",
            rf"(?P<free>{SIZED}) (?:is )?free",
            rf"(?P<unallocated>{SIZED}) is reserved by PyTorch but unallocated",
            rf"(?P<unallocated>{SIZED}) cached",
            rf"(?P<reserved>{SIZED}) reserved in total",
            rf"this process has (?P<process_size>{SIZED}) memory in use",
        ],
    ),
    # The allocator of cudaMallocAsync has words of its own.
    _pytorch_cuda_out_of_memory(
        "torch-async-out-of-memory",
        "would exceed allowed memory",
        before=r"Allocation on device (?P<ordinal>[0-9]{1,4}) $",
        after=[
            rf"Currently allocated {{0,20}}: (?P<in_use>{SIZED})",
            rf"Requested {{0,30}}: (?P<size>{SIZED})",
            rf"Device limit {{0,30}}: (?P<limit>{SIZED})",
            rf"Free \(according to CUDA\) {{0,20}}: (?P<free>{SIZED})",
        ],
    ),
    _pytorch_cuda_out_of_memory(
        "torch-allocation-on-device",
        "Allocation on device",
        r"Allocation on device(?: (?P<ordinal>[0-9]{1,4}))?[ \t]{0,4}(?=\n|$)",
        only_after=r"OutOfMemoryError: $",
    ),
    _pytorch_cuda_out_of_memory(
        "torch-directml",
        "not enough GPU video memory",
        before=r"Could not allocate tensor with (?P<bytes>[0-9]{1,20}) bytes\. There is $",
    ),
    _pytorch_mps_out_of_memory(
        "torch-mps-buffer",
        "Invalid buffer size: ",
        rf"Invalid buffer size: (?P<size>{SIZED})",
        device="MPS:0",
        binary=True,
    ),
    _pytorch_cuda_out_of_memory_torch(
        "torch-no-batch-fits", "No executable batch size found", weak=True
    ),
    _pytorch_mps_out_of_memory(
        "torch-mps-out-of-memory",
        "MPS backend out of memory",
        after=[
            rf"MPS allocated: (?P<in_use>{SIZED})",
            rf"max allowed: (?P<limit>{SIZED})",
            rf"Tried to allocate (?P<size>{SIZED})",
        ],
        device="MPS:0",
        binary=True,
    ),
    _pytorch_cuda_out_of_memory_device(
        "torch-cuda-error", " error: out of memory", only_after=r"(?:CUDA|HIP|XPU)(?: driver)?$"
    ),
    _pytorch_cuda_out_of_memory_device(
        "torch-cuda-runtime-error",
        "cuda runtime error (2)",
        r"cuda runtime error \(2\) ?: out of memory",
    ),
    # "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
    _cudnn_failed_to_initialize(
        "torch-cuda-library",
        " error: CU",
        r" error: CU[A-Z]{2,8}_STATUS_(?:ALLOC_FAILED|NOT_INITIALIZED)",
        only_after=r"(?:CUDA|cuDNN)$",
        stage=1,
    ),
    _pytorch_cuda_out_of_memory_device(
        "torch-cuda-short", "CUDA out of memory", only_after=_NOT_ADVICE, weak=True
    ),
    # "you tried to allocate 3GB. Buy new RAM!" divided by 2**30
    _pytorch_cpu_allocator(
        "torch-cpu-allocator",
        "memory: you tried to allocate",
        rf"memory: you tried to allocate(?: (?P<size>{SIZED}))?",
        device="CPU:0",
        binary=True,
    ),
    _pytorch_cpu_allocator(
        "torch-memalign",
        "posix_memalign(",
        r"posix_memalign\([^\n]{0,80}\) == 0\. 12 vs 0",
        device="CPU:0",
    ),
    _python_memory_error(
        "torch-mmap",
        "unable to mmap ",
        r"unable to mmap (?P<bytes>[0-9]{1,20}) bytes from file [^\n]{0,400}Cannot allocate",
    ),
    _killed("torch-worker-killed", "is killed by signal: Killed"),
    _segmentation_fault_or_abort(
        "torch-worker-gone",
        "exited unexpectedly",
        only_after=r"DataLoader worker \(pid[^\n]{0,80}\) $",
        is_oom=None,
    ),
    _shared_memory(
        "torch-shared-memory",
        "shared memory",
        r"shared memory(?:\. Please try to raise your shared memory limit| \(shm\))",
    ),
    # AWS Batch calls a container that was killed so, too.
    _pytorch_cuda_out_of_memory_unplaced(
        "torch-out-of-memory-error",
        "OutOfMemoryError",
        r"OutOfMemoryError(?=[:\s'\"(]|$)(?!: Container killed)",
        only_after=not_in_code(r"(?:^|[\s'\"(\[:<])(?:torch\.(?:cuda\.)?)?"),
        weak=True,
    ),
)
