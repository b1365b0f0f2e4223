"""``legroom.TensorBoard``: a callback that writes memory, slices and events for TensorBoard."""

from __future__ import annotations

import contextlib
import os
from typing import Any

from legroom.core.events import listening
from legroom.guard.sampling import sampler
from legroom.report.tensorboard import TensorBoardLog

__all__ = ["MEMORY_LOGS", "TensorBoard"]

# The same in every epoch: CSVLogger fixes its columns at the first.
MEMORY_LOGS = ("memory_peak_mb", "memory_slices", "memory_ooms")


def TensorBoard(log_dir: str | os.PathLike[str] = "logs") -> Any:
    """A Keras callback that shows memory in TensorBoard, beside or without Keras's own.

    Memory over steps, slices, what happened, and the timeline as a picture go to `log_dir`. The
    peak, the slices and the out-of-memory errors are also put into the `logs` of each epoch, so
    that `History`, `CSVLogger` and whatever else reads them has them, if it comes after this one
    in `callbacks`.

    Args:
        log_dir: Where; a folder `legroom` is made in it, so that Keras's own stay apart.
    """
    import keras

    class MemoryTensorBoard(keras.callbacks.Callback):
        async_safe = True

        def __init__(self) -> None:
            super().__init__()
            self._folder = os.path.join(os.fspath(log_dir), "legroom")
            self._log: TensorBoardLog | None = None
            self._listening = contextlib.ExitStack()

        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            self._log = TensorBoardLog(self._folder)
            self._listening.enter_context(listening(self._log))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            from legroom.backends.tensorflow import pool

            sampler.begin(pool)  # a model that is not guarded has nobody else who does

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            del epoch
            if self._log is None:
                return
            sampler.tell()
            self._log.flush()
            if logs is not None:
                values = (self._log.peak_bytes / 1e6, self._log.slices, self._log.ooms)
                logs.update(zip(MEMORY_LOGS, values, strict=True))

        def on_train_end(self, logs: Any = None) -> None:
            del logs
            self._listening.close()
            if self._log is not None:
                self._log.close()
                self._log = None

    return MemoryTensorBoard()
