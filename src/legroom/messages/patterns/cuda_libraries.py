"""cuDNN, cuBLAS and their family: they need memory of their own, and say so in their own way."""

from __future__ import annotations

from legroom.messages.patterns.pattern import wordings
from legroom.messages.reading.sizes import SIZED

__all__ = ["PATTERNS"]

_cudnn_failed_to_initialize = wordings(
    "cudnn-failed-to-initialize", fallback="tensorflow", where="device"
)
_cudnn_failed_to_initialize_device = wordings(
    "cudnn-failed-to-initialize", framework="tensorflow", where="device"
)
_cudnn_failed_to_initialize_tensorflow = wordings(
    "cudnn-failed-to-initialize", framework="tensorflow"
)
_cudnn_failed_to_initialize_torch = wordings(
    "cudnn-failed-to-initialize", fallback="torch", where="device"
)
_cuda_error_out_of_memory = wordings("cuda-error-out-of-memory", where="device")
_cuda_error_out_of_memory_unplaced = wordings("cuda-error-out-of-memory")
_resource_exhausted = wordings("resource-exhausted")

PATTERNS = (
    # CUDNN_STATUS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED, CUSOLVER_…, CUFFT_ALLOC_FAILED.
    _cudnn_failed_to_initialize("cuda-library-alloc-failed", "_ALLOC_FAILED", stage=1),
    _cudnn_failed_to_initialize_device(
        "cudnn-handle",
        "ould not create cudnn handle",
        r"ould not create cudnn handle: CUDNN_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED)",
        stage=1,
    ),
    _cudnn_failed_to_initialize("cublas-handle", "CUBLAS_STATUS_NOT_INITIALIZED", stage=1),
    _cudnn_failed_to_initialize("cudnn-not-initialized", "CUDNN_STATUS_NOT_INITIALIZED", stage=1),
    _cudnn_failed_to_initialize_device(
        "cudnn-convolution-algorithm", "Failed to get convolution algorithm"
    ),
    _cudnn_failed_to_initialize_device("cudnn-no-algorithm-worked", "No algorithm worked!"),
    _cudnn_failed_to_initialize_device(
        "cublas-handle-in-words",
        "ailed to create cublas handle",
        r"ailed to create cublas handle: the resource allocation failed",
        stage=1,
    ),
    _cudnn_failed_to_initialize_tensorflow(
        "cublas-handle-unsaid",
        "ailed to create cublas handle",
        r"ailed to create cublas handle(?!: the resource)",
        is_oom=None,
        stage=1,
        weak=True,
    ),
    _cudnn_failed_to_initialize_tensorflow(
        "dnn-library",
        "DNN library ",
        r"DNN library (?:initialization failed|is not found)",
        is_oom=None,
        weak=True,
    ),
    # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
    _cudnn_failed_to_initialize_torch(
        "cudnn-allocation-failed", "_DEVICE_ALLOCATION_FAILED", stage=1
    ),
    # What CUDA, HIP and NCCL themselves call it, whoever passes it on: "CUDA driver error: out
    # of memory", "Cuda failure 2 'out of memory'", "cudaMalloc failed: out of memory".
    _cuda_error_out_of_memory(
        "cuda-in-words",
        "out of memory",
        only_after=r"(?:[Cc][Uu][Dd][Aa]|[Hh][Ii][Pp]|NCCL|Gpu)[^\n]{0,160}(?:: ?|['\"(])$",
        before=(
            rf"allocating (?P<size>{SIZED}) on device (?P<ordinal>[0-9]{{1,4}}): \w{{1,30}} "
            r"failed: $"
        ),
        after=[
            r"^[^\n]{0,40}\n- Free memory: (?P<free>[0-9]{1,20})",
            r"^[^\n]{0,40}\n[^\n]{0,60}\n- Requested memory: (?P<bytes>[0-9]{1,20})",
        ],
        weak=True,
    ),
    _cuda_error_out_of_memory_unplaced(
        "out-of-memory-in-words",
        "out of memory",
        only_after=r"(?:(?:INTERNAL|Internal|UNKNOWN|[Ee]rror|failed|failure): |Error |\()$",
        weak=True,
    ),
    _resource_exhausted(
        "hsa-out-of-resources", "HSA_STATUS_ERROR_OUT_OF_RESOURCES", is_oom=None, weak=True
    ),
    _cudnn_failed_to_initialize(
        "cudnn-other-status",
        "CUDNN_STATUS_",
        r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)(?!_)",
        is_oom=None,
        weak=True,
    ),
)
