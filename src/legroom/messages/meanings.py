"""What each finding means, in a sentence or two, where there is no figure to tell it by."""

from __future__ import annotations

__all__ = ["MEANINGS"]

MEANINGS = {
    "allocation-exceeds-10-percent": (
        "A warning, not a failure: one allocation took more than a tenth of the host memory that "
        "was free. It matters only if the process is killed later."
    ),
    "no-space-left-on-device": (
        "The disk is full, not the memory. TensorFlow puts the same RESOURCE_EXHAUSTED and the "
        "same hint about tensors on both."
    ),
    "grpc-message-larger-than-max": (
        "A message between two processes was larger than gRPC allows, often 4 MB. No memory ran "
        "out, though the error is called RESOURCE_EXHAUSTED."
    ),
    "cudnn-version-mismatch": (
        "The cuDNN library that was loaded is not the version this program was built for. No "
        "memory ran out."
    ),
    "no-gpu-found": (
        "No GPU can be used: the driver or a CUDA library is missing. No memory ran out; the work "
        "runs on the CPU, in host memory."
    ),
    "cudnn-failed-to-initialize": (
        "A library of the GPU (cuDNN or cuBLAS) could not get the memory it needs beside the "
        "model. That is what it means unless driver and library versions disagree, and nothing "
        "here says that they do."
    ),
    "dst-tensor-is-not-initialized": (
        "A tensor was to be copied to the device and there was no room for the copy."
    ),
    "shared-memory": (
        "The shared memory (/dev/shm) that data loader workers pass batches through is full. "
        "Containers have 64 MB of it by default."
    ),
    "segmentation-fault-or-abort": (
        "The process crashed. TensorFlow with oneDNN and XLA on the CPU crash like this when host "
        "memory runs out, but other faults look the same: this text does not tell which."
    ),
    "notebook-crashed": "The notebook's process ended and was restarted.",
    "resource-exhausted": (
        "Something ran out, and this text does not say what: RESOURCE_EXHAUSTED can mean memory, "
        "disks, quotas or messages."
    ),
    "killed": "The process was ended from outside by SIGKILL, which it can't catch or report.",
}
