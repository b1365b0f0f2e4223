"""What TensorFlow says when memory runs out, from 0.8 to 2.21."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern, not_in_code
from legroom.messages.sizes import SIZE, SIZED

__all__ = ["PATTERNS"]

_OP = r"[^\s\]]{1,400}"
_JOB = r"/job:[^\s;,}]{1,200}"

PATTERNS = (
    Pattern(
        name="tf-oom-tensor",
        key="OOM when allocating tensor",
        regex=re.compile(
            r"OOM when allocating tensor(?: (?:with|of) shape ?(?:\[(?P<shape>[0-9, ]{0,300})\])?)?"
            r"(?: and type (?P<dtype>\w{1,20}))?"
            r"(?: on (?P<device>[^\s]{1,200}))?(?: by allocator (?P<allocator>\w{1,80}))?"
            rf"(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
        before=re.compile(rf"__wrapped__(?P<op>\w{{1,100}}?)_device_(?P<device>{_JOB})\}}\}} ?$"),
        finding="oom-when-allocating-tensor",
        framework="tensorflow",
    ),
    Pattern(
        name="tf-oom-buffer",
        key="OOM when allocating a buffer of ",
        regex=re.compile(
            r"OOM when allocating a buffer of (?P<bytes>[0-9]{1,20}) bytes"
            rf"(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
        finding="oom-when-allocating-tensor",
        framework="tensorflow",
    ),
    Pattern(
        # The same with its beginning cut off.
        name="tf-oom-tensor-cut",
        key="] and type ",
        regex=re.compile(
            r"\] and type (?P<dtype>\w{1,20}) on (?P<device>[^\s]{1,200})"
            rf" by allocator (?P<allocator>\w{{1,80}})(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"
        ),
        before=re.compile(r"shape\[(?P<shape>[0-9, ]{0,300})$"),
        finding="oom-when-allocating-tensor",
        framework="tensorflow",
    ),
    Pattern(
        # Also JAX's, which uses the same allocator: the file's path and what stands around tell.
        name="tf-bfc-ran-out",
        key="memory trying to allocate",
        regex=re.compile(
            rf"memory trying to allocate(?: (?P<size>{SIZED}))?"
            r"(?:\s?\(rounded to (?P<bytes>[0-9]{1,20})\))?(?: from the (?:lower|upper) end)?"
            rf"(?P<harmless>\swith\sfreed_by_count)?(?: ?requested by op (?P<op>{_OP}))?"
        ),
        after=(re.compile(r"^\.?\s{1,40}(?P<harmless>The\s{1,40}caller\s{1,40}indicates)"),),
        before=re.compile(r"Allocator \((?P<allocator>[\w.-]{1,80})\) [Rr]an out of $"),
        finding="bfc-allocator-ran-out-of-memory",
        fallback="tensorflow",
        stage=1,
    ),
    Pattern(
        # A log that was cut: the allocator's dump is there, the failure is not.
        name="tf-bfc-dump",
        key="Sum Total of in-use chunks",
        regex=re.compile(r"Sum Total of in-use chunks"),
        finding="bfc-allocator-ran-out-of-memory",
        fallback="tensorflow",
        stage=1,
        weak=True,
    ),
    Pattern(
        name="tf-bfc-stats",
        key="MaxAllocSize: ",
        regex=re.compile(r"MaxAllocSize: {1,40}[0-9]"),
        finding="bfc-allocator-ran-out-of-memory",
        fallback="tensorflow",
        stage=1,
        weak=True,
    ),
    Pattern(
        name="tf-failed-to-allocate-memory",
        key="failed to allocate memory",
        regex=re.compile(rf"failed to allocate memory(?! for)(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"),
        before=re.compile(
            rf"(?:__wrapped__(?P<op>\w{{1,100}}?)_device_|to device: )(?P<device>{_JOB})"
            r"[}. ]{1,4}$"
        ),
        finding="failed-to-allocate-memory",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        name="tf-dst-tensor",
        key="Dst tensor is not initialized",
        regex=re.compile(rf"Dst tensor is not initialized\.?(?:\s{{0,3}}\[Op:(?P<op>{_OP})\])?"),
        before=re.compile(
            rf"Failed copying input tensor from \S{{1,200}} to (?P<device>{_JOB}) "
            r"in order to run (?P<op>[^\s:]{1,200}): ?$"
        ),
        finding="dst-tensor-is-not-initialized",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        name="tf-recv-unable-to-allocate",
        key="unable to allocate output tensor",
        regex=re.compile(
            rf"unable to allocate output tensor(?:\. Key: {_JOB};\w{{1,40}};(?P<device>{_JOB});)?"
        ),
        finding="dst-tensor-is-not-initialized",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        # The pool tries to grow, then with less: alone it may cost nothing.
        name="cuda-driver-failed-to-allocate",
        key="ailed to allocate ",
        regex=re.compile(
            rf"ailed to allocate (?:device memory of )?(?P<size>{SIZED})"
            r"(?: ?\((?P<bytes>[0-9]{1,20}) ?[Bb](?:ytes)?\))?(?: from device)?: "
            r"(?:[A-Z_]{1,40}: ?:? ?)?"
            r"(?:CUDA_ERROR_OUT_OF_MEMORY|HIP_ERROR_OutOfMemory|hipError\w{0,30}|out of memory)"
        ),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="device",
        stage=0,
        weak=True,
    ),
    Pattern(
        name="cuda-driver-failed-on-host",
        key="ailed to alloc ",
        regex=re.compile(r"ailed to alloc (?P<bytes>[0-9]{1,20}) bytes on host"),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="host",
        stage=0,
        weak=True,
    ),
    Pattern(
        name="cuda-pinned-host-memory",
        key="could not allocate pinned host memory",
        regex=re.compile(
            rf"could not allocate pinned host memory(?: of size:? ?(?P<size>{SIZE}))?"
        ),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="host",
        stage=0,
        weak=True,
    ),
    Pattern(
        name="cuda-malloc-async",
        key="cuMemAllocAsync failed to allocate",
        regex=re.compile(r"cuMemAllocAsync failed to allocate (?P<bytes>[0-9]{1,20}) bytes"),
        before=re.compile(r"(?P<allocator>\w{1,20}_async_[0-9]{1,4}) $"),
        after=(
            re.compile(
                r"^[^\n]{0,200}\n? ?Reported by CUDA: Free memory/Total memory: "
                r"(?P<free>[0-9]{1,20})/(?P<limit>[0-9]{1,20})"
            ),
        ),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="device",
        stage=1,
    ),
    Pattern(
        name="tf-cuda-initialization",
        key="CUDA runtime implicit initialization on",
        regex=re.compile(
            r"CUDA runtime implicit initialization on (?P<device_kind>[A-Z]{2,4}):"
            r"(?P<ordinal>[0-9]{1,4}) failed\. Status: [^\n]{0,40}out of memory"
        ),
        finding="cuda-error-out-of-memory",
        framework="tensorflow",
        where="device",
    ),
    Pattern(
        name="cuda-error-out-of-memory",
        key="CUDA_ERROR_OUT_OF_MEMORY",
        regex=re.compile(r"CUDA_ERROR_OUT_OF_MEMORY"),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="device",
        stage=0,
        weak=True,
    ),
    Pattern(
        # oneDNN's status 1 is "out of memory".
        name="tf-onednn-out-of-memory",
        key="received an exception:Status: 1,",
        regex=re.compile(r"received an exception:Status: 1, message: could not"),
        finding="oom-when-allocating-tensor",
        framework="tensorflow",
        where="host",
        device="CPU:0",
    ),
    Pattern(
        # Apple's GPUs, under tensorflow-metal.
        name="metal-out-of-memory",
        key="kIOGPUCommandBufferCallbackErrorOutOfMemory",
        regex=re.compile(r"kIOGPUCommandBufferCallbackErrorOutOfMemory"),
        finding="cuda-error-out-of-memory",
        fallback="tensorflow",
        where="device",
    ),
    Pattern(
        # Only ever said where the type of the error is TensorFlow's own.
        name="tf-resource-exhausted-error",
        key="ResourceExhaustedError",
        regex=re.compile(r"ResourceExhaustedError"),
        only_after=not_in_code(""),
        finding="oom-when-allocating-tensor",
        framework="tensorflow",
        weak=True,
    ),
    Pattern(
        name="resource-exhausted",
        key="RESOURCE_EXHAUSTED",
        regex=re.compile(r"RESOURCE_EXHAUSTED"),
        finding="resource-exhausted",
        is_oom=None,
        weak=True,
    ),
    Pattern(
        name="resource-exhausted-old",
        key="Resource exhausted:",
        regex=re.compile(r"Resource exhausted:"),
        finding="resource-exhausted",
        is_oom=None,
        weak=True,
    ),
)
