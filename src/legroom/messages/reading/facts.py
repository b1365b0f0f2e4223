"""Facts: what one message tells, before it is put together with others."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Facts", "clean"]


@dataclasses.dataclass(slots=True)
class Facts:
    """What a message says. What it does not say is None.

    Attributes:
        framework: ``tensorflow``, ``jax``, ``torch``, ``numpy`` or ``system``.
        where: ``device``, ``host`` or ``disk``.
        device: As ``GPU:0``.
        requested_bytes: The allocation that failed.
        shape: The shape of the tensor it was for.
        dtype: The type of its elements.
        op: The op that asked.
        layer: The layer that the op belongs to.
        limit_bytes: What the allocator may use at most.
        in_use_bytes: What it had given out.
        largest_free_bytes: The largest piece it could have given.
        free_bytes: What the device or host calls free.
        pool_bytes: What the allocator had taken from the device so far.
        unallocated_bytes: What PyTorch had reserved and not given out.
        process_bytes: All that the process held, the framework's own context included.
        data_format: ``NHWC`` or ``NCHW``, where the node says so.
        op_kind: The kind of the op, where the node says so.
        memory_space: The TPU memory that ran out: ``hbm``, ``vmem``, ``smem``.
        process: The name of the process that was killed.
    """

    framework: str | None = None
    where: str | None = None
    device: str | None = None
    requested_bytes: int | None = None
    shape: tuple[int, ...] | None = None
    dtype: str | None = None
    op: str | None = None
    layer: str | None = None
    limit_bytes: int | None = None
    in_use_bytes: int | None = None
    largest_free_bytes: int | None = None
    free_bytes: int | None = None
    pool_bytes: int | None = None
    unallocated_bytes: int | None = None
    process_bytes: int | None = None
    data_format: str | None = None
    op_kind: str | None = None
    memory_space: str | None = None
    process: str | None = None

    @property
    def room_bytes(self) -> int | None:
        """What the limit left unused, in whatever pieces."""
        if self.limit_bytes is None or self.in_use_bytes is None:
            return None
        return max(self.limit_bytes - self.in_use_bytes, 0)

    def fill(self, other: Facts, *, but: tuple[str, ...] = ()) -> None:
        """Take from another message what this one does not say."""
        for name in self.__slots__:
            if name not in but and getattr(self, name) is None:
                setattr(self, name, getattr(other, name))

    def replace(self, **changes: Any) -> Facts:
        """A copy with some fields changed."""
        return dataclasses.replace(self, **changes)


def clean(text: str, limit: int = 300) -> str:
    """Text from a log as one printable line, no longer than a limit.

    Nothing in a log may act on the terminal it is shown in. Control characters, escape sequences'
    first bytes, direction overrides, zero-width characters and lone surrogates are not printable
    by Unicode's own account, and are dropped.
    """
    head = text[: 4 * limit]
    if not head.isprintable():
        head = "".join(char if char.isprintable() else " " for char in head)
    line = " ".join(head.split())
    return line if len(line) <= limit else line[: limit - 1] + "…"
