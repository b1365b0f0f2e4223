"""Records what a step allocates and frees, by layer and by what it is for.

Every op of a step comes by here, below autograd. What it returns has a storage: the first tensor
that has it is its allocation, and when the last one is gone it is freed. Layers are known by the
calls that are under way; in a backward pass, by the numbers that autograd has given to the ops of
the forward pass.
"""

from __future__ import annotations

import bisect
import contextlib
import gc
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from legroom.backends.torch.device.storages import storages
from legroom.backends.torch.forecast.fakes import Imagined
from legroom.backends.torch.forecast.script import Piece, Script
from legroom.backends.torch.forecast.workspaces import CardWorkspaces, HostScratch, Workspaces

__all__ = ["Recorder", "TooMuch"]


class TooMuch(Exception):
    """More is in use than was allowed."""


class Recorder(Imagined):
    """Records allocations.

    Args:
        card: Whether the step runs on a GPU, whose libraries take workspaces.
        limit: The bytes that may be in use; more of them end the step.
        fake: Whether the step runs on fake tensors.
    """

    def __init__(self, *, card: bool = False, limit: int | None = None, fake: bool = True) -> None:
        super().__init__(fake=fake)
        self.pieces: list[Piece] = []
        self._before: list[int] = []
        self._events: list[int] = []
        self.purpose = "activations"
        self._known: dict[int, tuple[int, Any]] = {}
        self._layers: list[str] = []
        self._starts: list[int] = []  # the numbers of autograd at which another layer begins
        self._owners: list[str] = []
        self._workspaces: Workspaces = CardWorkspaces() if card else HostScratch()
        self._limit = limit
        self.in_use = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and see what it allocates."""
        scratch = self._take_workspaces(func, args) if self._fake else []
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        if self._fake:
            # Functions that PyTorch makes to imagine an op hold each other, and with them its
            # tensors. The real op frees those at once.
            gc.collect(0)
        if isinstance(outputs, torch.Tensor):
            self.see(outputs, func)
        elif isinstance(outputs, (list, tuple)):
            for output in outputs:
                if isinstance(output, torch.Tensor):
                    self.see(output, func)
        self._events.extend(~place for place in scratch)
        return outputs

    def see(self, tensor: Any, func: Any = None) -> None:
        """A tensor is there: where its storage was not there before, it was allocated."""
        for storage in storages(tensor):
            if storage._cdata not in self._known:
                self._allocated(storage, func)

    def _allocated(self, storage: Any, func: Any) -> None:
        key = storage._cdata
        node = torch._C._current_autograd_node()
        op = "" if func is None else func.overloadpacket.__name__
        place = self._add(storage.nbytes(), op, self._layer(node), self.purpose)
        self._known[key] = place, weakref.ref(storage, lambda _: self._gone(key))
        if self._limit is not None and self.in_use > self._limit:
            raise TooMuch

    def _add(self, nbytes: int, op: str, layer: str, kind: str) -> int:
        place = len(self.pieces)
        self.pieces.append(Piece(nbytes, op, layer, kind))
        self._events.append(place)
        self.in_use += nbytes
        return place

    def _gone(self, key: int) -> None:
        place, _ = self._known.pop(key)
        self.in_use -= self.pieces[place].nbytes
        self._events.append(~place)

    def mark(self, tensors: Sequence[Any], kind: str, layers: Sequence[str] = ()) -> None:
        """Say what tensors are for, now that it is known."""
        for number, tensor in enumerate(tensors):
            for place in self.places([tensor]):
                piece = self.pieces[place]
                piece.kind = kind
                if layers:
                    piece.layer = layers[number]

    def begin_step(self) -> None:
        """The step begins: what was recorded until now comes before it."""
        self._before, self._events = self._events, []

    def script(self, leftover: Sequence[Any] = (), *, rehearsed: bool = False) -> Script:
        """What was recorded.

        Args:
            leftover: The places of pieces that the step before has left.
            rehearsed: Whether what came before was a step, too.
        """
        left = frozenset(leftover)
        return Script(self.pieces, self._before, self._events, left, rehearsed, self.guessed)

    def places(self, tensors: Sequence[Any]) -> list[int]:
        """The places of the pieces that tensors are in."""
        found = [self._known.get(x._cdata) for tensor in tensors for x in storages(tensor)]
        return [known[0] for known in found if known is not None]

    @contextlib.contextmanager
    def layer(self, name: str) -> Iterator[None]:
        """What is allocated inside is for a layer, and so is what its gradients take."""
        self.enter(name)
        try:
            yield
        finally:
            self.leave()

    def enter(self, name: str) -> None:
        """A layer's call begins."""
        self._layers.append(name)
        self._turn()

    def leave(self) -> None:
        """The call that began last has ended."""
        self._layers.pop()
        self._turn()

    def _turn(self) -> None:
        number = torch._C._autograd._get_sequence_nr()
        if not self._starts or number >= self._starts[-1]:
            self._starts.append(number)
            self._owners.append(self._layers[-1] if self._layers else "")

    def _layer(self, node: Any) -> str:
        if node is None:
            return self._layers[-1] if self._layers else ""
        at = bisect.bisect_right(self._starts, node._sequence_nr()) - 1
        return self._owners[at] if at >= 0 else ""

    def _take_workspaces(self, func: Any, args: Any) -> list[int]:
        """Take what kernels need beside their results; returns what is freed after the op."""
        node = torch._C._current_autograd_node()
        op, taken = func.overloadpacket.__name__, []
        for nbytes, stays in self._workspaces.of(op, args, backward=node is not None):
            place = self._add(nbytes, op, self._layer(node), "workspace")
            if not stays:
                self.in_use -= nbytes
                taken.append(place)
        return taken
