"""The memory of a training over time, sampled while steps run, and told as events.

A thread looks a few times a second and tells what was the most. The longer a run takes, the less
often it tells: a run of weeks fills no disk, and no peak falls between two samples, because each
carries the highest value since the one before. The thread begins with the first step and ends by
itself when no steps come any more.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from legroom.core.events import MemorySampled, emit

__all__ = ["Sampler", "sampler", "seconds_between"]

_LOOK_EVERY = 0.1
_TELL_EVERY = 0.5
# A sample for each thousandth of the time that has passed: the number of them grows like its
# logarithm.
_SHARE = 1000
_IDLE_AFTER = 60.0
# A framework may wait for memory before it gives up, and giving up may end the process: a step that
# hangs like this, with so little left, is told while it can be.
_HANGS_AFTER, _FULL, _TELL_HANGING_EVERY = 2.0, 0.95, 3.0


def seconds_between(elapsed: float) -> float:
    """How far apart two samples are told, when so many seconds have passed."""
    return max(_TELL_EVERY, elapsed / _SHARE)


class Sampler:
    """Counts steps, and follows memory while they run. One for each process."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self._pool: Any = None
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._told_machine = False
        self._began = 0.0
        self._looked: _Looked | None = None

    def count(self, samples: int, steps: int = 1) -> None:
        """Steps were done; called for each one, so it does next to nothing."""
        self.steps += steps
        self.samples += samples
        if self._thread is None:
            self.begin(self._pool)

    def begin(self, pool: Any) -> None:
        """Follow the memory of a device's pool from now on, as long as steps come."""
        with self._lock:
            if pool is None or self._thread is not None:
                return
            self._pool = pool
            self._stop.clear()
            self._thread = threading.Thread(target=self._run, name="legroom-memory", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no memory for its stack: the training does without
                self._thread = None

    @property
    def peak_bytes(self) -> int | None:
        """The most that was in use on the device so far; None where nobody looked."""
        return None if self._looked is None else self._looked.peak or None

    def tell(self) -> None:
        """Tell what was seen since the last time; called at a training's end."""
        looked = self._looked
        if looked is not None:
            with contextlib.suppress(Exception):
                looked.look()
                self._emit(looked)

    def end(self) -> None:
        """End the thread: no framework may be asked while the process comes down."""
        self._stop.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=1.0)
        self._looked = None

    def _run(self) -> None:
        # Whatever a driver or an allocator answers, the training goes on.
        with contextlib.suppress(Exception):
            self._follow()
        with self._lock:
            self._thread = None

    def _follow(self) -> None:
        looked = self._looked = _Looked(self._pool)
        began = self._began = self._began or time.monotonic()
        looked.look()
        self._emit(looked)
        if not self._told_machine:
            self._told_machine = True
            from legroom.guarding.showing.surroundings import describe_machine

            emit(describe_machine(self._pool))
        told = worked = time.monotonic()
        steps = self.steps
        while not self._stop.wait(_LOOK_EVERY):
            looked.look()
            now = time.monotonic()
            if self.steps != steps:
                steps, worked = self.steps, now
            elif now - worked > _IDLE_AFTER:
                return
            pause = seconds_between(now - began)
            if now - worked > _HANGS_AFTER and looked.is_full():
                pause = min(pause, _TELL_HANGING_EVERY)
            if now - told >= pause:
                told = now
                self._emit(looked)

    def _emit(self, looked: _Looked) -> None:
        emit(looked.take(self.steps, self.samples))


class _Looked:
    """What was seen since it was last told."""

    def __init__(self, pool: Any) -> None:
        from legroom.machine.process import ResidentMemory

        self._pool = pool
        self._limit: int = pool.limit_bytes() or 0
        self._resident: Callable[[], int] = ResidentMemory()
        self._device: int | None = None
        self._host = 0
        self.peak = 0  # kept, because the guard resets the allocator's own to measure steps

    def look(self) -> None:
        """Look now."""
        in_use = self._pool.in_use_bytes()
        if in_use is not None:
            self._device = max(self._device or 0, in_use)
            self.peak = max(self.peak, in_use, self._pool.peak_bytes() or 0)
        self._host = max(self._host, self._resident())

    def is_full(self) -> bool:
        """Whether next to nothing was left of the device's memory."""
        return bool(self._limit) and (self._device or 0) >= _FULL * self._limit

    def take(self, steps: int, samples: int) -> MemorySampled:
        """What was the most by so many steps and samples, and begin anew."""
        seen = MemorySampled(
            device_bytes=self._device,
            full=self.is_full(),
            peak_bytes=self.peak or None,
            host_bytes=self._host or None,
            steps=steps,
            samples=samples,
        )
        self._device, self._host = None, 0
        return seen


sampler = Sampler()
atexit.register(sampler.end)
