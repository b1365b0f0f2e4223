"""Follows memory through loops, and has what makes it grow found out.

Reading memory takes a tenth of a millisecond, so it is done after each of a loop's first
iterations, and then so seldom that it takes no more than three thousandths of the time. Whatever
takes longer (collecting garbage, counting who holds what, noting lines) is done only where readings
rise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import statistics
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from legroom.backends import patches
from legroom.backends.base import imported
from legroom.core.aside import say_left_out
from legroom.core.errors import UnsupportedModelError
from legroom.core.events import Found, Note, emit
from legroom.core.findings import Finding
from legroom.doctor.growing.examiner import UNEXPLAINED, Examiner
from legroom.doctor.growing.loops import Loop, LoopTracer, is_users_file
from legroom.doctor.growing.series import LoopReading, LoopSeries
from legroom.machine.process import ResidentMemory, heap_bytes

__all__ = ["Watcher"]

_FREE = 12  # first iterations that are read whatever it costs
_FREE_RUNS = 3  # of a loop, for one that is entered again and again
_SHARE = 0.003  # of the time may go into readings
_FIRST_LOOK = 8  # readings
_MOST_CENSUSES = 4  # that are made on suspicion only
_JOINED = 24  # readings: runs of a loop with fewer are taken for parts of one
_RISES = 3  # readings, that tell what is usual
_TRAINING = "training"


class Watcher:
    """Watches loops in this process while it is switched on."""

    def __init__(self) -> None:
        self._resident = ResidentMemory()
        self._tracer = LoopTracer(self._round, self.ended)
        self._examiner = Examiner(self._read, self._user_frames)
        self._signs: Any = None
        self._series: dict[Any, LoopSeries] = {}
        self._short: dict[str, LoopSeries] = {}
        self._trainings: dict[str, int] = {}
        self._runs: dict[str, int] = {}
        self._ticked: dict[str, float] = {}
        self._found: dict[tuple[str, str], Finding] = {}
        self._cost = 1e-4
        self._next_look = 0.0
        self._our_heap = 0
        self._our_pages = 0
        self._settling = False
        self._censuses = 0
        self._failed = False
        self._frame: types.FrameType | None = None
        self.on_call: Callable[[], None] | None = None

    @property
    def findings(self) -> list[Finding]:
        """What was found so far."""
        return list(self._found.values())

    def start(self, frame: types.FrameType | None = None, *, follow: bool = True) -> None:
        """Begin.

        Args:
            frame: A frame that is running, whose loops are to be followed.
            follow: Whether loops of the user's code are followed at all.
        """
        self._frame = frame
        self.find_signs()
        if follow:
            self._tracer.start(frame)

    def stop(self) -> list[Finding]:
        """End, and say what was found."""
        self._tracer.stop()
        # Trainings last: they are asked where no loop has told.
        for key in sorted(self._series, key=lambda key: self._series[key].unit == _TRAINING):
            self.ended(key)
        self._examiner.holders.stop_noting()
        if self._signs is not None:
            self._signs.stop()
            self._signs = self._examiner.signs = None
        self._frame = None
        return self.findings

    def tick(
        self, key: Any, place: str, unit: str, iteration: int, *, filling: bool = False
    ) -> None:
        """Note that an iteration has ended.

        Args:
            key: Which loop: ticks of one run of a loop have the same.
            place: Its line, or what it is.
            unit: What an iteration is.
            iteration: Its number.
            filling: Whether buffers and caches of the input fill meanwhile.
        """
        series = self._series.get(key)
        if series is None:
            series = self._series[key] = self._begun(place, unit, filling)
        now = self._ticked[place] = time.perf_counter()
        if self._failed:
            return
        free = series.free and iteration <= _FREE
        if not free and now - series.last_read < self._cost / _SHARE:
            return
        with self._never_failing():
            self.find_signs()
            reading = self._read(series.before + iteration)
            if self._settling:
                self._take_for_ours(series, reading)
                reading = self._read(series.before + iteration)
            series.add(reading)
            self._look(series)
        series.last_read = time.perf_counter()

    def ended(self, key: Any) -> None:
        """Note that a loop has come to its end."""
        series = self._series.pop(key, None)
        if series is None:
            return
        with self._never_failing():
            if series.unit != _TRAINING or not self._found:
                self._say_all(series, self._examiner.examine(series, self.findings))
        if series.unit == "iteration" and len(series.readings) < _JOINED:
            self._short[series.place] = series

    def _begun(self, place: str, unit: str, filling: bool) -> LoopSeries:
        """The series of a run of a loop: a new one, or the one of a run before that was short."""
        runs = self._runs[place] = self._runs.get(place, 0) + 1
        series = self._short.pop(place, None)
        if series is None or (series.unit, series.filling) != (unit, filling):
            series = LoopSeries(place, unit, filling=filling)
        series.go_on()
        series.free = runs <= _FREE_RUNS
        return series

    @contextlib.contextmanager
    def _never_failing(self) -> Iterator[None]:
        """A watch that fails says so, once, and watches no more; the training goes on."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                self._failed = True
                why = f"{type(error).__name__}: {error}"
                emit(Note(f"legroom.watch stopped after an error of its own: {why}"))

    def _round(self, loop: Loop) -> None:
        self.tick(loop, loop.place, "iteration", loop.iteration)

    def find_signs(self) -> None:
        """Have the framework's signs read as well, once it is there."""
        if self._signs is None and "keras" in sys.modules:
            for backend in imported():
                if (lacking := patches.missing("watch")) is not None:
                    from legroom.guarding.session import terminal

                    with terminal():
                        say_left_out("what TensorFlow and Keras keep is not watched", lacking)
                    return
                try:
                    signs = backend.growth_signs
                except UnsupportedModelError:
                    continue  # memory is watched without them
                self._signs = self._examiner.signs = signs.Signs(self)
                self._signs.start()

    def call_begins(self) -> bool:
        """A call that is known to be long: nothing in it is followed."""
        return self._tracer.pause()

    def call_ended(self, paused: bool) -> None:
        """It has ended.

        Args:
            paused: What `call_begins` returned.
        """
        self._tracer.go_on(paused)
        if self.on_call is not None:
            self.on_call()

    @contextlib.contextmanager
    def training(self, place: str) -> Iterator[None]:
        """Around a `fit`: its steps are a loop's; and so may it be, where Python shows none."""
        key, steps = object(), itertools.count(1)

        def step() -> None:
            # Buffers and caches of the input fill with its first epoch.
            self.tick(key, place, "step", next(steps), filling=True)

        outer, self.on_call = self.on_call, step
        try:
            yield
        finally:
            self.on_call = outer
            self.ended(key)
        count = self._trainings[place] = self._trainings.get(place, 0) + 1
        self.tick((_TRAINING, place), place, _TRAINING, count)

    def _read(self, iteration: int) -> LoopReading:
        began = time.perf_counter()
        counts = None if self._signs is None else self._signs.counts()
        # A count of all holders takes memory as well, which is ours and not the loop's.
        heap = None if (seen := heap_bytes()) is None else seen - self._our_heap
        reading = LoopReading(iteration, self._resident() - self._our_pages, heap, counts)
        # The lower of two is nearer to what a reading costs: other threads disturb it.
        self._cost = max(2e-5, min(time.perf_counter() - began, 2 * self._cost))
        return reading

    def _look(self, series: LoopSeries) -> None:
        if series.unit == _TRAINING:
            return
        count, now = len(series.readings), time.perf_counter()
        due = count >= _FIRST_LOOK and count >= 1.5 * series.examined and now >= self._next_look
        first = series.census is None and not self._found and self._censuses < _MOST_CENSUSES
        # Every training's first steps take more and more: those have to pass the test.
        if first and (due and series.memory().grows if series.filling else series.suspicious()):
            unexplained = not any(series.rate(name) for name in ("pinned", "generators"))
            if unexplained:
                self._count_first(series)
        if due:
            series.examined = count
            self._say_all(series, self._examiner.examine(series, self.findings))
            # The first looks of a loop are for a few readings, and quick; later ones have time.
            took = time.perf_counter() - now
            self._next_look = now + (took / _SHARE if count > 2 * _FREE else 0)

    def _count_first(self, series: LoopSeries) -> None:
        """Count who holds what now."""
        self._censuses += 1
        before = heap_bytes(), self._resident()
        iteration = series.readings[-1].iteration
        series.census = self._examiner.holders.count(iteration, self._user_frames())
        after = heap_bytes(), self._resident()
        self._our_heap += (after[0] or 0) - (before[0] or 0)
        self._our_pages += after[1] - before[1]
        self._settling = True

    def _take_for_ours(self, series: LoopSeries, reading: LoopReading) -> None:
        """What the iteration after a count takes beyond the usual is the count's, and not its."""
        self._settling = False
        before = series.readings
        if len(before) < _RISES:
            return
        self._our_pages += _beyond([one.resident for one in [*before, reading]])
        if reading.heap is not None:
            self._our_heap += _beyond([one.heap or 0 for one in [*before, reading]])

    def _user_frames(self) -> list[types.FrameType]:
        """The frames of the user's code that are running now, the innermost first."""
        frames = [] if self._frame is None else [self._frame]
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_users_file(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        return frames

    def _say_all(self, series: LoopSeries, causes: list[Finding]) -> None:
        for cause in causes:
            if self._is_told_elsewhere(series, cause):
                continue
            key = (cause.id, str(cause.data.get("holder") or cause.place))
            before = self._found.get(key)
            if before is None:
                emit(Found(finding=cause))
            elif before.data.get("made_at") and not cause.data.get("made_at"):
                # Lines are noted only for a few iterations.
                cause = dataclasses.replace(before, bytes=cause.bytes)
            self._found[key] = cause
            if cause.id != UNEXPLAINED:  # then it is explained
                for key in [key for key in self._found if key[0] == UNEXPLAINED]:
                    del self._found[key]

    def _is_told_elsewhere(self, series: LoopSeries, cause: Finding) -> bool:
        """Whether a loop inside this one, or around it, was named for the same."""
        if cause.id == UNEXPLAINED and any(found.id != UNEXPLAINED for found in self.findings):
            return True
        return any(
            found.id == cause.id
            and not cause.data.get("holder")
            and found.data["loop"] != series.place
            and self._ticked.get(found.data["loop"], 0.0) > series.began
            for found in self.findings
        )


def _beyond(sizes: list[int]) -> int:
    """By how much the last rise exceeds the usual one of those before."""
    rises = [later - earlier for earlier, later in itertools.pairwise(sizes)]
    return max(0, rises[-1] - round(statistics.median(rises[:-1])))
