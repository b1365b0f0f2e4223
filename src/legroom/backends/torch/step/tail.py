"""The end of a step, from its first update on: it happens wholly or not at all.

By then the activations are gone, so there is room; but an optimizer has scratch of its own, and
where that is not to be had a slot is moved and its weight is not. The first step of a kind
therefore has a copy of all that its update writes, in the host's memory, and is measured. Later
ones first take as much as it took and give it back: what is there now is there for the update.
"""

from __future__ import annotations

import contextlib
import signal
import tempfile
import threading
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import IO, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from legroom.backends.careful import is_users_own
from legroom.backends.torch.device.errors import is_oom
from legroom.backends.torch.device.pool import Pool
from legroom.backends.torch.device.storages import storages
from legroom.core.aside import in_a_line
from legroom.core.errors import LegroomError, OutOfMemoryError

__all__ = ["Tail", "Written"]

# A step that was measured takes so much more another time, for blocks that do not fit exactly.
_MARGIN, _LEAST = 1.05, 2**20


class Written:
    """What an update writes, and how it is put back.

    Args:
        tensors: Weights and slots, as they are now.
        forget_new: Takes away what is born in the update.
    """

    def __init__(self, tensors: list[Any], forget_new: Callable[[], None] = lambda: None) -> None:
        self._tensors = list({id(x): x for x in tensors}.values())
        self._forget_new = forget_new
        self._copies: list[Any] = []
        self._file: IO[bytes] | None = None
        try:
            # Not pinned: that would take as long as the step.
            self._copies = [x.detach().to("cpu", copy=True) for x in self._tensors]
        except RuntimeError as error:
            if not is_oom(error):
                raise
            self._copies.clear()
            self._file = self._written_to_disk()

    def _written_to_disk(self) -> IO[bytes]:
        """Where there is no room for a copy in memory: a file, which has no name."""
        file = tempfile.TemporaryFile()  # noqa: SIM115  (it is kept until the step is through)
        for tensor in self._tensors:
            file.write(_bytes_of(tensor))
        return file

    @torch.no_grad()
    def put_back(self) -> None:
        """Everything as it was before the update."""
        if self._file is not None:
            self._file.seek(0)
            for tensor in self._tensors:
                self._file.readinto(_bytes_of(tensor))  # type: ignore[attr-defined]
        for tensor, copy in zip(self._tensors, self._copies, strict=False):
            tensor.copy_(copy)
        self._forget_new()


def _bytes_of(tensor: Any) -> Any:
    """A CPU tensor's own memory."""
    return tensor.detach().reshape(-1).view(torch.uint8).numpy().data


class Tail:
    """Looks after the updates of one step, again and again.

    Args:
        pool: The device.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._scratch: dict[Hashable, int] = {}
        self._kind: Hashable = None
        self._began = False
        self._copy: Written | None = None
        self._stack = contextlib.ExitStack()
        self._taken: Callable[[], int] = lambda: 0

    @property
    def began(self) -> bool:
        """Whether the update of the present step has begun."""
        return self._began

    def begin(
        self,
        kind: Hashable,
        written: Callable[[], Written],
        *,
        measured: bool = True,
        keeps: bool = False,
    ) -> None:
        """An update is about to begin; more of them in the same step belong to it.

        Args:
            kind: What steps are alike: those have the same scratch.
            written: Copies what the update writes.
            measured: Whether its scratch can be told from the step's own memory.
            keeps: Whether it may have to be undone even if there is memory for it.
        """
        if self._began:
            return
        self._kind = kind
        known = self._scratch.get(kind)
        scarce = self._pool.has_limit() and (known is None or not self._pool.has_room(known))
        if keeps or scarce:
            # No room for a copy, nor on disk: as plain PyTorch then, for it may well fit.
            with contextlib.suppress(OSError):
                self._copy = written()
        if known is None and measured:
            self._taken = self._stack.enter_context(_measured(self._pool))
        self._stack.enter_context(_uninterrupted())
        self._began = True

    def done(self) -> None:
        """The step is through."""
        if self._began:
            taken = self._taken()
            self._close()
            # Where nothing runs out, it is enough to have looked once.
            if taken or not self._pool.has_limit():
                known = self._scratch.get(self._kind, 0)
                self._scratch[self._kind] = max(known, int(taken * _MARGIN) + _LEAST)

    def failed(self, error: BaseException) -> None:
        """The step has failed: put back what the update has written.

        Raises:
            OutOfMemoryError: Where nothing is there to put back, so that nobody tries it again.
            LegroomError: The same, where it is not the user's code that failed.
        """
        if not self._began:
            return
        copy = self._copy
        self._close()
        self._scratch.pop(self._kind, None)  # it takes more than was measured
        if copy is not None:
            copy.put_back()
        elif is_oom(error):
            raise OutOfMemoryError(
                "Memory ran out in the middle of the optimizer's update, and there was no room for "
                "a copy of the weights: some of them are updated and others are not. Continue from "
                "your last checkpoint, with a smaller model or an optimizer that keeps less (SGD)."
            ) from error
        elif isinstance(error, Exception) and not is_users_own(error):
            raise LegroomError(
                "legroom itself failed in the middle of the optimizer's update, so some weights "
                "may be updated and others not (please report it): "
                f"{in_a_line(error)}. Continue from your last checkpoint; with LEGROOM_DISABLE=1 "
                "the script trains without legroom."
            ) from error

    def _close(self) -> None:
        self._began = False
        self._copy = None
        self._taken = lambda: 0
        self._stack.close()


@contextlib.contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the update is through."""
    ours = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGINT) if ours else None
    if not callable(before):
        yield
        return
    pressed: list[Any] = []
    signal.signal(signal.SIGINT, lambda *given: pressed.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pressed:
            before(*pressed[0])


@contextlib.contextmanager
def _measured(pool: Pool) -> Iterator[Callable[[], int]]:
    """Tell, when it is asked, the most that was taken on top since the context began."""
    in_use = pool.in_use_bytes() or 0
    if pool.peak_bytes() is not None:
        with pool.peak_apart():
            yield lambda: max(0, (pool.peak_bytes() or 0) - in_use)
        return
    with _Counting() as counting:
        yield lambda: counting.peak


class _Counting(TorchDispatchMode):
    """Counts the bytes of tensors that come and go: a CPU's allocator does not."""

    def __init__(self) -> None:
        super().__init__()
        self._live = 0
        self.peak = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for leaf in torch.utils._pytree.tree_leaves(made):
            if isinstance(leaf, torch.Tensor):
                for storage in storages(leaf):
                    self._count(storage)
        return made

    def _count(self, storage: Any) -> None:
        key = storage._cdata
        if key in self._seen:
            return
        self._seen.add(key)
        nbytes = storage.nbytes()
        self._live += nbytes
        self.peak = max(self.peak, self._live)
        weakref.finalize(storage, self._gone, key, nbytes)

    def _gone(self, key: int, nbytes: int) -> None:
        self._seen.discard(key)
        self._live -= nbytes
