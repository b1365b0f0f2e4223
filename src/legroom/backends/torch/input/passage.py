"""One way through data, which another process can repeat up to a place.

A loader of PyTorch draws when it is asked for an iterator (the seed of its workers) and when that
is first asked for a batch (the order), from its own generator or from the one that all share. So
where all generators were at these two moments is noted. To come to a place again, they are put back
there, and as many batches are passed over: without being made where the loader makes them one by
one in this process, by its `state_dict` where it has one, and by reading them otherwise.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _SingleProcessDataLoaderIter

from legroom.backends.torch.state.arrays import as_array, as_tensor
from legroom.backends.torch.state.remembered import put_remembered, remembered
from legroom.backends.torch.state.state_dicts import as_plain, from_plain

__all__ = ["Passage", "begin", "leave"]

_Place = dict[str, Any]


def begin(data: Any, place: _Place | None, passed: int) -> Passage:
    """Begin a pass over data, at a place."""
    passage = Passage(data, place, passed)
    passage.reach()
    return passage


def leave(data: Any, left: _Place) -> None:
    """Have data remember what it did when a pass was over."""
    put_remembered(data, left["remembered"])


class Passage:
    """The batches of one iterator.

    Args:
        data: What is gone through: a loader, or anything else.
        place: What another process told of its place, where this one is to begin at it.
        passed: How many batches it had taken there.
    """

    def __init__(self, data: Any, place: _Place | None = None, passed: int = 0) -> None:
        self._data = data
        self._place = place
        self._passed = passed
        if place is not None:
            _put(data, place["created"])
        self._created = _moment(data)
        self._started: _Place | None = None
        kept = None if place is None else place.get("loader")
        if kept is not None and passed:
            data.load_state_dict(from_plain(kept))
            self._passed = 0
        self._inner = iter(data)  # now, as it is done without legroom

    def reach(self) -> None:
        """Pass over what comes before the place; done by the first batch that is asked for."""
        if self._started is not None:
            return
        place = self._place
        if place is not None and place["started"] is not None:
            _put(self._data, place["started"])
        self._started = _moment(self._data)
        self._pass_over()
        if place is not None and place["now"] is not None:
            put_remembered(self._data, place["now"])

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self.reach()
        return next(self._inner)

    def place(self) -> _Place:
        """How to come to where it is now."""
        taken: _Place = {"created": self._created, "started": self._started, "now": None}
        if self._started is not None:
            taken["now"] = remembered(self._data)
            if hasattr(self._data, "load_state_dict") and hasattr(self._data, "state_dict"):
                # Where it is no plain values, batches are passed over.
                with contextlib.suppress(TypeError):
                    taken["loader"] = as_plain(self._data.state_dict())
        return taken

    def left(self) -> _Place:
        """What the data itself remembers when the pass is over."""
        return {"remembered": remembered(self._data)}

    def _pass_over(self) -> None:
        inner: Any = self._inner
        by_number = (
            isinstance(inner, _SingleProcessDataLoaderIter)
            and isinstance(self._data, DataLoader)
            and not isinstance(self._data.dataset, torch.utils.data.IterableDataset)
            and hasattr(inner, "_next_index")
        )
        for _ in range(self._passed):
            if by_number:
                inner._next_index()  # draws what the order needs, and makes nothing
            else:
                next(inner)


def _moment(data: Any) -> _Place:
    """Where the generators are that data may draw from, and what it remembers itself."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "torch": as_array(torch.get_rng_state()).copy(),
        "remembered": remembered(data),
    }


def _put(data: Any, moment: _Place) -> None:
    random.setstate(moment["python"])
    np.random.set_state(moment["numpy"])
    torch.set_rng_state(as_tensor(moment["torch"]))
    put_remembered(data, moment["remembered"])
