"""cuDNN, cuBLAS and their family: they need memory of their own, and say so in their own way."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern

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
