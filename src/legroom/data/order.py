"""The order in which a stream gives its samples: random, repeatable, and found again at any place.

Files are read in chunks, runs of samples that lie side by side. A pass draws an order of all
chunks, reads some of them at a time (a window), and draws an order of the samples in each window.
So a window is a random choice from all over the data, reading is never by single samples, and
what comes at a place follows from the seed alone: nothing has to be read to get there.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["PassOrder"]


class PassOrder:
    """The order of one pass over the data.

    Args:
        sizes: The samples in each chunk.
        at_once: Chunks in a window.
        seed: What the order is drawn from; None for the order of the files.
    """

    def __init__(self, sizes: Any, at_once: int, seed: int | None) -> None:
        self._at_once = at_once
        self._seed = seed
        self._chunks = np.arange(len(sizes))
        if seed is not None:
            self._chunks = np.random.Generator(np.random.PCG64(seed)).permutation(len(sizes))
        ends = np.cumsum(np.asarray(sizes, np.int64)[self._chunks])
        last = [*range(at_once - 1, len(sizes), at_once)]
        if not last or last[-1] != len(sizes) - 1:
            last.append(len(sizes) - 1)
        self.starts = np.concatenate([[0], ends[last]])

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return len(self.starts) - 1

    def window_at(self, place: int) -> int:
        """The window that the sample at a place of the pass is in."""
        return int(np.searchsorted(self.starts, place, side="right")) - 1

    def chunks(self, window: int) -> list[int]:
        """The chunks of a window, in the order in which they are read."""
        return self._chunks[window * self._at_once : (window + 1) * self._at_once].tolist()

    def samples(self, window: int) -> Any:
        """The order of the samples in a window."""
        count = int(self.starts[window + 1] - self.starts[window])
        if self._seed is None:
            return np.arange(count)
        return np.random.Generator(np.random.PCG64([self._seed, window])).permutation(count)
