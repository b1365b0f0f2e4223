"""cuDNN, cuBLAS and their family: they need memory of their own, and say so in their own way."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern
from legroom.messages.sizes import SIZED

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        # CUDNN_STATUS_ALLOC_FAILED, CUBLAS_STATUS_ALLOC_FAILED, CUSOLVER_…, CUFFT_ALLOC_FAILED.
        name="cuda-library-alloc-failed",
        key="_ALLOC_FAILED",
        regex=re.compile(r"_ALLOC_FAILED"),
        finding="cudnn-failed-to-initialize",
        fallback="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="cudnn-handle",
        key="ould not create cudnn handle",
        regex=re.compile(
            r"ould not create cudnn handle: CUDNN_STATUS_(?:INTERNAL_ERROR|NOT_INITIALIZED)"
        ),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="cublas-handle",
        key="CUBLAS_STATUS_NOT_INITIALIZED",
        regex=re.compile(r"CUBLAS_STATUS_NOT_INITIALIZED"),
        finding="cudnn-failed-to-initialize",
        fallback="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="cudnn-not-initialized",
        key="CUDNN_STATUS_NOT_INITIALIZED",
        regex=re.compile(r"CUDNN_STATUS_NOT_INITIALIZED"),
        finding="cudnn-failed-to-initialize",
        fallback="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="cudnn-convolution-algorithm",
        key="Failed to get convolution algorithm",
        regex=re.compile(r"Failed to get convolution algorithm"),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        name="cudnn-no-algorithm-worked",
        key="No algorithm worked!",
        regex=re.compile(r"No algorithm worked!"),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        name="cublas-handle-in-words",
        key="ailed to create cublas handle",
        regex=re.compile(r"ailed to create cublas handle: the resource allocation failed"),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="cublas-handle-unsaid",
        key="ailed to create cublas handle",
        regex=re.compile(r"ailed to create cublas handle(?!: the resource)"),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        is_oom=None,
        stage=1,
        weak=True,
    ),
    Pattern(
        name="dnn-library",
        key="DNN library ",
        regex=re.compile(r"DNN library (?:initialization failed|is not found)"),
        finding="cudnn-failed-to-initialize",
        framework="tensorflow",
        is_oom=None,
        weak=True,
    ),
    Pattern(
        # cuDNN 9: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED
        name="cudnn-allocation-failed",
        key="_DEVICE_ALLOCATION_FAILED",
        regex=re.compile(r"_DEVICE_ALLOCATION_FAILED"),
        finding="cudnn-failed-to-initialize",
        fallback="torch",
        where="device",
        stage=1,
    ),
    Pattern(
        # What CUDA, HIP and NCCL themselves call it, whoever passes it on: "CUDA driver error: out
        # of memory", "Cuda failure 2 'out of memory'", "cudaMalloc failed: out of memory".
        name="cuda-in-words",
        key="out of memory",
        regex=re.compile(r"out of memory"),
        only_after=re.compile(
            r"(?:[Cc][Uu][Dd][Aa]|[Hh][Ii][Pp]|NCCL|Gpu)[^\n]{0,160}(?:: ?|['\"(])$"
        ),
        before=re.compile(
            rf"allocating (?P<size>{SIZED}) on device (?P<ordinal>[0-9]{{1,4}}): \w{{1,30}} "
            r"failed: $"
        ),
        after=(
            re.compile(r"^[^\n]{0,40}\n- Free memory: (?P<free>[0-9]{1,20})"),
            re.compile(r"^[^\n]{0,40}\n[^\n]{0,60}\n- Requested memory: (?P<bytes>[0-9]{1,20})"),
        ),
        finding="cuda-error-out-of-memory",
        where="device",
        weak=True,
    ),
    Pattern(
        name="out-of-memory-in-words",
        key="out of memory",
        regex=re.compile(r"out of memory"),
        only_after=re.compile(
            r"(?:(?:INTERNAL|Internal|UNKNOWN|[Ee]rror|failed|failure): |Error |\()$"
        ),
        finding="cuda-error-out-of-memory",
        weak=True,
    ),
    Pattern(
        name="hsa-out-of-resources",
        key="HSA_STATUS_ERROR_OUT_OF_RESOURCES",
        regex=re.compile(r"HSA_STATUS_ERROR_OUT_OF_RESOURCES"),
        finding="resource-exhausted",
        is_oom=None,
        weak=True,
    ),
    Pattern(
        name="cudnn-other-status",
        key="CUDNN_STATUS_",
        regex=re.compile(r"CUDNN_STATUS_(?:INTERNAL_ERROR|EXECUTION_FAILED)(?!_)"),
        finding="cudnn-failed-to-initialize",
        fallback="tensorflow",
        where="device",
        is_oom=None,
        weak=True,
    ),
)
