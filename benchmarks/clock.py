"""The time of each epoch, for several benchmarks."""

from __future__ import annotations

import time

import keras

__all__ = ["Clock"]


class Clock(keras.callbacks.Callback):
    """Takes the time of each epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Start the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: object = None) -> None:
        """Stop the clock."""
        self.seconds.append(time.perf_counter() - self._began)
