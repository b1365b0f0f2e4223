"""What TensorFlow says when memory runs out, from 0.8 to 2.21."""

from __future__ import annotations

from legroom.messages.patterns.pattern import not_in_code, wordings
from legroom.messages.reading.sizes import SIZE, SIZED

__all__ = ["PATTERNS"]

_OP = r"[^\s\]]{1,400}"
_JOB = r"/job:[^\s;,}]{1,200}"

_oom_when_allocating_tensor = wordings("oom-when-allocating-tensor", framework="tensorflow")
_cuda_error_out_of_memory = wordings(
    "cuda-error-out-of-memory", fallback="tensorflow", where="device"
)
_bfc_allocator_ran_out_of_memory = wordings(
    "bfc-allocator-ran-out-of-memory", fallback="tensorflow"
)
_dst_tensor_is_not_initialized = wordings(
    "dst-tensor-is-not-initialized", framework="tensorflow", where="device"
)
_cuda_error_out_of_memory_host = wordings(
    "cuda-error-out-of-memory", fallback="tensorflow", where="host"
)
_resource_exhausted = wordings("resource-exhausted")
_failed_to_allocate_memory = wordings(
    "failed-to-allocate-memory", framework="tensorflow", where="device"
)
_cuda_error_out_of_memory_device = wordings(
    "cuda-error-out-of-memory", framework="tensorflow", where="device"
)
_oom_when_allocating_tensor_host = wordings(
    "oom-when-allocating-tensor", framework="tensorflow", where="host"
)

PATTERNS = (
    _oom_when_allocating_tensor(
        "tf-oom-tensor",
        "OOM when allocating tensor",
        (
            r"OOM when allocating tensor(?: (?:with|of) shape ?(?:\[(?P<shape>[0-9, ]{0,300})\])?)?"
            r"(?: and type (?P<dtype>\w{1,20}))?"
            r"(?: on (?P<device>[^\s]{1,200}))?(?: by allocator (?P<allocator>\w{1,80}))?"
            rf"(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
        before=rf"__wrapped__(?P<op>\w{{1,100}}?)_device_(?P<device>{_JOB})\}}\}} ?$",
    ),
    _oom_when_allocating_tensor(
        "tf-oom-buffer",
        "OOM when allocating a buffer of ",
        (
            r"OOM when allocating a buffer of (?P<bytes>[0-9]{1,20}) bytes"
            rf"(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
    ),
    # The same with its beginning cut off.
    _oom_when_allocating_tensor(
        "tf-oom-tensor-cut",
        "] and type ",
        (
            r"\] and type (?P<dtype>\w{1,20}) on (?P<device>[^\s]{1,200})"
            rf" by allocator (?P<allocator>\w{{1,80}})(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
        before=r"shape\[(?P<shape>[0-9, ]{0,300})$",
    ),
    # While a step is traced: a constant found no room.
    _oom_when_allocating_tensor("tf-constant", "Unable to evaluate a constant node"),
    # Also JAX's, which uses the same allocator: the file's path and what stands around tell.
    _bfc_allocator_ran_out_of_memory(
        "tf-bfc-ran-out",
        "memory trying to allocate",
        (
            rf"memory trying to allocate(?: (?P<size>{SIZED}))?"
            r"(?:\s?\(rounded to (?P<bytes>[0-9]{1,20})\))?(?: from the (?:lower|upper) end)?"
            rf"(?P<harmless>\swith\sfreed_by_count)?(?: ?requested by op (?P<op>{_OP}))?"
        ),
        after=[r"^\.?\s{1,40}(?P<harmless>The\s{1,40}caller\s{1,40}indicates)"],
        before=r"Allocator \((?P<allocator>[\w.-]{1,80})\) [Rr]an out of $",
        stage=1,
    ),
    # A log that was cut: the allocator's dump is there, the failure is not.
    _bfc_allocator_ran_out_of_memory(
        "tf-bfc-dump", "Sum Total of in-use chunks", stage=1, weak=True
    ),
    _bfc_allocator_ran_out_of_memory(
        "tf-bfc-stats", "MaxAllocSize: ", r"MaxAllocSize: {1,40}[0-9]", stage=1, weak=True
    ),
    _failed_to_allocate_memory(
        "tf-failed-to-allocate-memory",
        "failed to allocate memory",
        rf"failed to allocate memory(?! for)(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?",
        before=(
            rf"(?:__wrapped__(?P<op>\w{{1,100}}?)_device_|to device: )(?P<device>{_JOB})"
            r"[}. ]{1,4}$"
        ),
    ),
    _dst_tensor_is_not_initialized(
        "tf-dst-tensor",
        "Dst tensor is not initialized",
        rf"Dst tensor is not initialized\.?(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?",
        before=(
            rf"Failed copying input tensor from \S{{1,200}} to (?P<device>{_JOB}) "
            r"in order to run (?P<op>[^\s:]{1,200}): ?$"
        ),
    ),
    _dst_tensor_is_not_initialized(
        "tf-recv-unable-to-allocate",
        "unable to allocate output tensor",
        rf"unable to allocate output tensor(?:\. Key: {_JOB};\w{{1,40}};(?P<device>{_JOB});)?",
    ),
    # The pool tries to grow, then with less: alone it may cost nothing.
    _cuda_error_out_of_memory(
        "cuda-driver-failed-to-allocate",
        "ailed to allocate ",
        (
            rf"ailed to allocate (?:device memory of )?(?P<size>{SIZED})"
            r"(?: ?\((?P<bytes>[0-9]{1,20}) ?[Bb](?:ytes)?\))?(?: from device)?: "
            r"(?:[A-Z_]{1,40}: ?:? ?)?"
            r"(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory|hipError\w{0,30}|out of memory)"
        ),
        stage=0,
        weak=True,
    ),
    _cuda_error_out_of_memory_host(
        "cuda-driver-failed-on-host",
        "ailed to alloc ",
        r"ailed to alloc (?P<bytes>[0-9]{1,20}) bytes on host",
        stage=0,
        weak=True,
    ),
    _cuda_error_out_of_memory_host(
        "cuda-pinned-host-memory",
        "could not allocate pinned host memory",
        rf"could not allocate pinned host memory(?: of size:? ?(?P<size>{SIZE}))?",
        stage=0,
        weak=True,
    ),
    _cuda_error_out_of_memory(
        "cuda-malloc-async",
        "cuMemAllocAsync failed to allocate",
        r"cuMemAllocAsync failed to allocate (?P<bytes>[0-9]{1,20}) bytes",
        before=r"(?P<allocator>\w{1,20}_async_[0-9]{1,4}) $",
        after=[
            (
                r"^[^\n]{0,200}\n? ?Reported by CUDA: Free memory/Total memory: "
                r"(?P<free>[0-9]{1,20})/(?P<limit>[0-9]{1,20})"
            )
        ],
        stage=1,
    ),
    _cuda_error_out_of_memory_device(
        "tf-cuda-initialization",
        "CUDA runtime implicit initialization on",
        (
            r"CUDA runtime implicit initialization on (?P<device_kind>[A-Z]{2,4}):"
            r"(?P<ordinal>[0-9]{1,4}) failed\. Status: [^\n]{0,40}out of memory"
        ),
    ),
    _cuda_error_out_of_memory(
        "cuda-error-out-of-memory", "CUDA_ERROR_OUT_OF_MEMORY", stage=0, weak=True
    ),
    # oneDNN's status 1 is "out of memory".
    _oom_when_allocating_tensor_host(
        "tf-onednn-out-of-memory",
        "received an exception:Status: 1,",
        r"received an exception:Status: 1, message: could not",
        device="CPU:0",
    ),
    # Apple's GPUs, under tensorflow-metal.
    _cuda_error_out_of_memory("metal-out-of-memory", "kIOGPUCommandBufferCallbackErrorOutOfMemory"),
    # Only ever said where the type of the error is TensorFlow's own.
    _oom_when_allocating_tensor(
        "tf-resource-exhausted-error",
        "ResourceExhaustedError",
        only_after=not_in_code(""),
        weak=True,
    ),
    _resource_exhausted("resource-exhausted", "RESOURCE_EXHAUSTED", is_oom=None, weak=True),
    _resource_exhausted("resource-exhausted-old", "Resource exhausted:", is_oom=None, weak=True),
)
