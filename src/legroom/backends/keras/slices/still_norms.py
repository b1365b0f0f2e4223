"""BatchNorm held still: by its moving statistics, which do not couple the samples of a batch."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from legroom.backends import patches

__all__ = ["still_norms"]


@contextlib.contextmanager
def still_norms() -> Iterator[list[str]]:
    """Have BatchNorm layers use their moving statistics for a while.

    Yields:
        The names of those that would have used the batch's.
    """
    names: list[str] = []

    def still(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: Any, inputs: Any, training: Any = None, mask: Any = None) -> Any:
            if training and self.trainable and self.name not in names:
                names.append(self.name)
            return original(self, inputs, training=False, mask=mask)

        return call

    with patches.replaced("keras.src.layers:BatchNormalization", "call", still):
        yield names
