"""What kernels take beside the tensors that they return, as far as it is known.

On a CPU a few copy what they are given. On a GPU cuBLAS has a workspace of its own in every thread,
which stays. What cuDNN takes for a convolution depends on the algorithm that it chooses, which only
the card tells: none is counted here, and an error bar stands for it.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch._prims_common import suggest_memory_format

__all__ = ["CardWorkspaces", "HostScratch", "Workspaces"]

_MATRIX_OPS = frozenset(("mm", "addmm", "bmm", "baddbmm", "addmv", "dot", "linear"))
# In KiB, as PyTorch sets it up: for Hopper, and for other cards.
_HOPPER = ":4096:8"
_OTHERS = ":4096:2:16:8"
_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"


class Workspaces(Protocol):
    """What a step's ops take, one after the other."""

    def of(self, op: str, args: Any, *, backward: bool) -> Iterator[tuple[int, bool]]:
        """What an op takes before it runs: bytes, and whether they stay.

        Args:
            op: Its name.
            args: What it is called with.
            backward: Whether it runs in a backward pass.
        """
        ...


class HostScratch:
    """What a CPU's kernels take."""

    def of(self, op: str, args: Any, *, backward: bool) -> Iterator[tuple[int, bool]]:
        """What an op takes before it runs."""
        del backward
        if op == "max_pool2d_with_indices_backward":
            upstream, given, indices = args[0], args[1], args[-1]
            if suggest_memory_format(upstream) != suggest_memory_format(given):
                # The result is put together in the other format, and its places are copied to it.
                yield given.nbytes + indices.nbytes, False
        elif op == "convolution" and args[0].dtype == torch.float16 and len(args[0].shape) == 4:
            # Every pixel's surroundings, in one matrix: oneDNN has no convolution for this type.
            weight = args[1]
            surroundings = math.prod(weight.shape[1:])
            if math.prod(weight.shape[2:]) > 1:
                places = args[0].shape[0] * _output_places(args[0], weight, args[3], args[4])
                yield places * surroundings * args[0].element_size(), False


class CardWorkspaces:
    """What a GPU's libraries take."""

    def __init__(self) -> None:
        self._seen: set[bool] = set()

    def of(self, op: str, args: Any, *, backward: bool) -> Iterator[tuple[int, bool]]:
        """What an op takes before it runs; a backward pass has a thread of its own."""
        del args
        if op in _MATRIX_OPS and backward not in self._seen:
            self._seen.add(backward)
            yield _cublas_bytes(), True


def _output_places(given: Any, weight: Any, stride: Any, padding: Any) -> int:
    sizes = zip(given.shape[2:], weight.shape[2:], stride, padding, strict=True)
    return math.prod((size + 2 * pad - kernel) // step + 1 for size, kernel, step, pad in sizes)


def _cublas_bytes() -> int:
    config = os.environ.get(_VARIABLE) or (_HOPPER if _is_hopper() else _OTHERS)
    numbers = [int(number) for number in re.findall(r"\d+", config)]
    return sum(1024 * size * count for size, count in zip(numbers[::2], numbers[1::2], strict=True))


def _is_hopper() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
