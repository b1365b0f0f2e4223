"""What looks like memory and is not, or is no failure."""

from __future__ import annotations

from legroom.messages.patterns.pattern import wordings

__all__ = ["PATTERNS"]

_no_space_left_on_device = wordings("no-space-left-on-device", fallback="system", where="disk")
_no_gpu_found = wordings("no-gpu-found", framework="tensorflow", kind="note")
_resource_exhausted = wordings("resource-exhausted", fallback="system")
_cudnn_version_mismatch = wordings("cudnn-version-mismatch", fallback="tensorflow")
_no_gpu_found_torch = wordings("no-gpu-found", framework="torch")
_allocation_exceeds_10_percent = wordings(
    "allocation-exceeds-10-percent", framework="tensorflow", kind="note", where="host"
)
_allocation_exceeds_10_percent_host = wordings(
    "allocation-exceeds-10-percent", fallback="system", kind="note", where="host"
)
_grpc_message_larger_than_max = wordings("grpc-message-larger-than-max", fallback="system")
_no_gpu_found_tensorflow = wordings("no-gpu-found", fallback="tensorflow", kind="note")
_no_gpu_found_jax = wordings("no-gpu-found", framework="jax", kind="note")

PATTERNS = (
    _allocation_exceeds_10_percent(
        "exceeds-10-percent",
        " exceeds 10% of ",
        r" exceeds 10% of (?:free )?system memory",
        before=r"Allocation of (?P<bytes>[0-9]{1,20})$",
        device="CPU:0",
        is_oom=False,
        fatal=False,
    ),
    _allocation_exceeds_10_percent_host(
        "tcmalloc-large-alloc",
        "large alloc ",
        r"large alloc (?P<bytes>[0-9]{1,20}) bytes",
        only_after=r"tcmalloc: {1,3}$",
        is_oom=False,
        fatal=False,
    ),
    _no_space_left_on_device("no-space-left", "No space left on device", is_oom=False),
    _no_space_left_on_device("disk-quota", "isk quota exceeded", is_oom=False),
    _no_space_left_on_device("disk-full-windows", "not enough space on the disk", is_oom=False),
    _grpc_message_larger_than_max(
        "grpc-message-size",
        "message larger than max",
        r"message larger than max(?: \([0-9]{1,20} vs\.? [0-9]{1,20}\))?",
        is_oom=False,
    ),
    _resource_exhausted("api-quota", "uota exceeded for", is_oom=False),
    _resource_exhausted("open-files", "oo many open files", is_oom=False),
    _cudnn_version_mismatch("cudnn-version", "Loaded runtime CuDNN library", is_oom=False, stage=1),
    _cudnn_version_mismatch(
        "cudnn-version-status",
        "CUDNN_STATUS_",
        r"CUDNN_STATUS_\w{0,40}VERSION_MISMATCH",
        is_oom=False,
        stage=1,
    ),
    _no_gpu_found("no-gpu-dlopen", "annot dlopen some GPU libraries", is_oom=False, fatal=False),
    _no_gpu_found("no-gpu-library", "ould not load dynamic library", is_oom=False, fatal=False),
    _no_gpu_found_tensorflow(
        "no-gpu-cuinit",
        "ailed call to cuInit",
        r"ailed call to cuInit: (?!CUDA_ERROR_OUT_OF_MEMORY)[^\n]{0,120}",
        is_oom=False,
        fatal=False,
    ),
    _no_gpu_found("no-gpu-drivers", "ould not find cuda drivers", is_oom=False, fatal=False),
    _no_gpu_found_torch("no-gpu-torch", "No CUDA GPUs are available", is_oom=False),
    _no_gpu_found_torch("no-gpu-torch-build", "Torch not compiled with CUDA enabled", is_oom=False),
    _no_gpu_found_jax(
        "no-gpu-jax",
        "falling back to CPU",
        only_after=r"(?:gpu|GPU)[^\n]{0,120}$",
        is_oom=False,
        fatal=False,
    ),
)
