"""The time of each epoch, or of each step, for several benchmarks."""

from __future__ import annotations

import time

import keras

__all__ = ["Clock", "StepClock"]


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


class StepClock(Clock):
    """Takes the time of each step as well: for that Keras waits after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[list[float]] = []

    def on_epoch_begin(self, epoch: int, logs: object = None) -> None:
        """Start the clock."""
        self.steps.append([])
        super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch: int, logs: object = None) -> None:
        """Start the step's clock."""
        self._step_began = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Stop it."""
        self.steps[-1].append(time.perf_counter() - self._step_began)
