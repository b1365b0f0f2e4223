"""``legroom.watch``: a callback and a context manager that name what grows."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterable
from typing import Any

from legroom.core.findings import Finding, ranked
from legroom.doctor.growing.follower import Watcher
from legroom.doctor.suppressions import read_ids, wanted

__all__ = ["Watch", "watch"]


def watch(*, ignore: Iterable[str] = (), quiet: bool = False) -> Watch:
    """Follow memory, and name what makes it grow.

    As a context manager around any loop, `with legroom.watch(): for … in …:`, or as a callback,
    `model.fit(…, callbacks=[legroom.watch()])`. What it found is printed when it ends, and is in
    its `findings`.

    Args:
        ignore: Ids of findings that are not wanted (`["LR109"]`).
        quiet: Print nothing.
    """
    if "keras" not in sys.modules:
        return Watch(ignore, quiet)
    import keras

    # A callback of Keras where there is Keras; without it, this is no reason to import it.
    kind = type("KerasWatch", (Watch, keras.callbacks.Callback), {})
    made: Watch = kind(ignore, quiet)
    return made


class Watch:
    """Follows memory. Made by `legroom.watch`."""

    async_safe = True

    def __init__(self, ignore: Iterable[str] = (), quiet: bool = False) -> None:
        super().__init__()
        self._ignore = read_ids([ignore] if isinstance(ignore, str) else ignore)
        self._quiet = quiet
        self._watcher = Watcher()
        self._all: list[Finding] = []
        self._inside = 0
        self._ticks = 0
        self._epochs = 0
        self._steps = 0
        self._place = ""

    @property
    def findings(self) -> list[Finding]:
        """What was found, what matters most first."""
        return ranked(wanted([*self._all, *self._watcher.findings], self._ignore))

    def __enter__(self) -> Watch:
        frame: types.FrameType | None = sys._getframe(1)
        self._begin(frame, follow=True)
        return self

    def __exit__(self, *error: Any) -> None:
        self._end()

    def tick(self) -> None:
        """Say that an iteration has ended, where legroom can't see the loop by itself."""
        self._ticks += 1
        self._watcher.tick("ticks", self._place or "the watched loop", "iteration", self._ticks)

    # What Keras calls.

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin with a training."""
        del logs
        name = getattr(getattr(self, "model", None), "name", "")
        self._place = f"fit of {name}" if name else "fit"
        self._epochs = self._steps = 0
        self._begin(None, follow=False)
        self._watcher.on_call = self._step

    # Not on_train_batch_end: where a callback has it, Keras fetches the step's results each time.
    def _step(self) -> None:
        """A `tf.function` was called: a step, perhaps with others of its own."""
        self._steps += 1
        # What fills in the first epoch (caches, shuffle buffers) is no growth.
        first = self._epochs == 0
        key = "first steps" if first else "steps"
        self._watcher.tick(key, self._place, "step", self._steps, filling=first)

    def on_epoch_end(self, epoch: Any, logs: Any = None) -> None:
        """An epoch has ended."""
        del epoch, logs
        self._epochs += 1
        self._watcher.tick("epochs", self._place, "epoch", self._epochs)

    def on_train_end(self, logs: Any = None) -> None:
        """The training has ended."""
        del logs
        self._end()

    def _begin(self, frame: types.FrameType | None, *, follow: bool) -> None:
        self._inside += 1
        if self._inside == 1:
            self._ticks = 0
            self._watcher.start(frame, follow=follow)

    def _end(self) -> None:
        self._inside -= 1
        if self._inside:
            return
        self._all += self._watcher.stop()
        self._watcher = Watcher()
        if self.findings and not self._quiet:
            from legroom.report.findings import print_findings

            print_findings(self.findings, sys.stderr)
