"""``legroom.MemoryTensorBoard``: a callback that writes memory and events for TensorBoard."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import Any

from legroom.backends.base import current
from legroom.core.events import listening
from legroom.guarding.showing.sampling import sampler
from legroom.report.exports.tensorboard import TensorBoardLog

__all__ = ["MEMORY_LOGS", "MemoryTensorBoard", "beside_keras"]

_FOLDER = "legroom"  # in TensorBoard's, so that Keras's own files stay apart
_CALLBACKS = 6  # the place of `callbacks` among the arguments of `fit`, the model being the first
# The same in every epoch: CSVLogger fixes its columns at the first.
MEMORY_LOGS = ("memory_peak_mb", "memory_slices", "memory_ooms")


def MemoryTensorBoard(log_dir: str | os.PathLike[str] = "logs") -> Any:
    """A Keras callback that shows memory in TensorBoard, beside or without Keras's own.

    Memory over steps, slices, what happened, and the timeline as a picture go to `log_dir`. The
    peak, the slices and the out-of-memory errors are also put into the `logs` of each epoch, so
    that `History`, `CSVLogger` and whatever else reads them has them, if it comes after this one
    in `callbacks`.

    Args:
        log_dir: Where; a folder `legroom` is made in it, so that Keras's own stay apart.
    """
    import keras

    class Written(keras.callbacks.Callback):
        async_safe = True

        def __init__(self) -> None:
            super().__init__()
            self._folder = os.path.join(os.fspath(log_dir), _FOLDER)
            self._log: TensorBoardLog | None = None
            self._listening = contextlib.ExitStack()

        def on_train_begin(self, logs: Any = None) -> None:
            del logs
            self._log = TensorBoardLog(self._folder)
            self._listening.enter_context(listening(self._log))

        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            del epoch, logs
            sampler.begin(current().device)  # a model that is not guarded has nobody else who does

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

    return Written()


@contextlib.contextmanager
def beside_keras(call: Any) -> Iterator[None]:
    """Write for TensorBoard while a call of `fit` runs in which Keras's own callback does.

    Args:
        call: The call, with its arguments bound.
    """
    keras: Any = sys.modules.get("keras")
    given = getattr(call, "args", ())[_CALLBACKS:]
    callbacks = getattr(call, "keywords", {}).get("callbacks", given[0] if given else None)
    listed = getattr(callbacks, "callbacks", callbacks)
    with contextlib.ExitStack() as stack:
        for callback in listed if isinstance(listed, (list, tuple)) and keras else ():
            if isinstance(callback, keras.callbacks.TensorBoard):
                # A folder that can't be written is Keras's to complain about.
                with contextlib.suppress(OSError):
                    log = TensorBoardLog(os.path.join(os.fspath(callback.log_dir), _FOLDER))
                    stack.callback(log.close)
                    stack.enter_context(listening(log))
        yield
