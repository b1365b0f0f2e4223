"""Follows memory through loops, and finds out what makes it grow.

Reading memory takes a tenth of a millisecond, so it is done after each of a loop's first
iterations, and then so seldom that it takes no more than three thousandths of the time. Whatever
takes longer (collecting garbage, counting who holds what, noting lines) is done only where readings
rise.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import sys
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from legroom.core.events import emit
from legroom.core.findings import Finding
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding
from legroom.doctor.census import count_holders, grown_holders, name_of_holder
from legroom.doctor.culprits import Evidence, holder_finding, name_culprits
from legroom.doctor.growth import Growth
from legroom.doctor.loops import Loop, LoopTracer, is_users_file
from legroom.doctor.series import LoopReading, LoopSeries
from legroom.machine.process import ResidentMemory, heap_bytes

__all__ = ["Watcher"]

_FREE = 12  # first iterations that are read whatever it costs
_FREE_RUNS = 3  # of a loop, for one that is entered again and again
_SHARE = 0.003  # of the time may go into readings
_FIRST_LOOK = 8  # readings
_GARBAGE = 0.6  # of the growth, gone after a collection: it was no growth
_UNEXPLAINED = 1_000_000  # bytes an iteration: what nothing explains has to be more than this
_MOST_CENSUSES = 4  # that are made on suspicion only
_FEWEST = 6


class Watcher:
    """Watches loops in this process while it is switched on."""

    def __init__(self) -> None:
        self._resident = ResidentMemory()
        self._tracer = LoopTracer(self._round, self._ended)
        self._signs: Any = None
        self._series: dict[Any, LoopSeries] = {}
        self._runs: dict[str, int] = {}
        self._found: dict[tuple[str, str], Finding] = {}
        self._cost = 1e-4
        self._last_read = 0.0
        self._next_look = 0.0
        self._our_heap = 0
        self._our_pages = 0
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
        self._find_signs()
        if follow:
            self._tracer.start(frame)

    def stop(self) -> list[Finding]:
        """End, and say what was found."""
        self._tracer.stop()
        for key in list(self._series):
            self.ended(key)
        self._series.clear()
        self._stop_noting()
        if self._signs is not None:
            self._signs.stop()
            self._signs = None
        self._frame = None
        return self.findings

    def tick(self, key: Any, place: str, unit: str, iteration: int) -> None:
        """Note that an iteration has ended.

        Args:
            key: Which loop: ticks of one run of a loop have the same.
            place: Its line, or what it is.
            unit: What an iteration is.
            iteration: Its number.
        """
        series = self._series.get(key)
        if series is None:
            runs = self._runs[place] = self._runs.get(place, 0) + 1
            series = self._series[key] = LoopSeries(place, unit)
            series.free = runs <= _FREE_RUNS
        now = time.perf_counter()
        if self._failed:
            return
        if not (series.free and iteration <= _FREE) and now - self._last_read < self._cost / _SHARE:
            return
        with self._never_failing():
            self._find_signs()
            series.add(self._read(iteration))
            self._look(series)
        self._last_read = time.perf_counter()

    def ended(self, key: Any) -> None:
        """Note that a loop has come to its end."""
        series = self._series.pop(key, None)
        if series is not None:
            with self._never_failing():
                self._examine(series)

    @contextlib.contextmanager
    def _never_failing(self) -> Iterator[None]:
        """A watch that fails says so, once, and watches no more; the training goes on."""
        try:
            yield
        except Exception as error:
            if not self._failed:
                self._failed = True
                emit("note", f"legroom.watch stopped by itself: {type(error).__name__}: {error}")

    def _round(self, loop: Loop) -> None:
        self.tick(loop, loop.place, "iteration", loop.iteration)

    def _ended(self, loop: Loop) -> None:
        self.ended(loop)

    def _find_signs(self) -> None:
        """Have TensorFlow's signs read as well, once it is there."""
        if self._signs is None and "keras" in sys.modules and "tensorflow" in sys.modules:
            from legroom.backends.tensorflow.growth import Signs

            self._signs = Signs(self._around)
            self._signs.start()

    @contextlib.contextmanager
    def _around(self) -> Iterator[None]:
        """Around a call that is known to be long: nothing in it is followed."""
        with self._tracer.paused():
            yield
        if self.on_call is not None:
            self.on_call()

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
        count = len(series.readings)
        first = series.census is None and not self._found and self._censuses < _MOST_CENSUSES
        if first and series.suspicious():
            unexplained = not any(series.rate(name) for name in ("pinned", "generators"))
            if unexplained:
                self._count_first(series)
        now = time.perf_counter()
        if count >= _FIRST_LOOK and count >= 1.5 * series.examined and now >= self._next_look:
            series.examined = count
            self._examine(series)
            # The first looks of a loop are for a few readings, and quick; later ones have time.
            took = time.perf_counter() - now
            self._next_look = now + (took / _SHARE if count > 2 * _FREE else 0)

    def _count_first(self, series: LoopSeries) -> None:
        """Count who holds what now, and note from now on which lines make tensors."""
        self._censuses += 1
        before = heap_bytes(), self._resident()
        series.census = (series.readings[-1].iteration, count_holders(self._weigh))
        after = heap_bytes(), self._resident()
        self._our_heap += (after[0] or 0) - (before[0] or 0)
        self._our_pages += after[1] - before[1]
        if self._signs is not None:
            self._signs.lines.start()

    def _stop_noting(self) -> None:
        if self._signs is not None:
            self._signs.lines.stop()

    def _examine(self, series: LoopSeries) -> None:
        """Test the readings of a loop, and name what makes them grow."""
        if len(series.readings) < _FEWEST:
            return
        memory = series.memory()
        evidence = self._evidence(series, memory)
        signs = any((evidence.pinned, evidence.generators, evidence.traces))
        if not signs and not series.worth_it(memory):
            return
        # What is garbage only waits to go: neither memory nor traces are to be judged before.
        garbage = self._collected(series) if memory.grows or evidence.traces else 0.0
        if memory.grows:
            # It has gathered since the loop began, and not only in the iterations that count.
            lasting = max(memory.slope - garbage / series.readings[-1].iteration, 0.0)
            steady = lasting < (1 - _GARBAGE) * memory.slope
            memory = dataclasses.replace(
                memory, slope=lasting, verdict="steady" if steady else "grows"
            )
            if steady and not signs:
                series.restart()
                return
        evidence = self._evidence(series, memory)  # anew: what was garbage is gone
        causes = name_culprits(evidence)
        named = any(
            "holder" in cause.data and cause.data["loop"] == series.place for cause in self.findings
        )
        if causes and not named:
            # Tensors that are kept as well: the device's own count tells, to the byte.
            beside = series.device_slope() - evidence.pinned_bytes
            causes += self._held(series, evidence) if beside > _UNEXPLAINED else []
        elif not named and series.worth_it(memory):
            causes = self._held(series, evidence) or self._unexplained(series, memory, evidence)
        for cause in causes:
            self._say(cause)

    def _evidence(self, series: LoopSeries, memory: Growth) -> Evidence:
        first, last = series.counted[0], series.readings[-1]
        iterations = max(last.iteration - first.iteration, 1)
        if self._signs is None or first.counts is None:
            return Evidence(series.place, series.unit, iterations, memory.slope)
        slope = memory.slope or series.rough_slope()
        pinned, pinned_bytes = 0.0, 0.0
        if series.rate("pinned"):
            number, weight = self._signs.pinned_bytes(last.counts.pinned - first.counts.pinned)
            pinned, pinned_bytes = number / iterations, weight / iterations
        traces = self._signs.traces(first.counts) if series.rate("traces") else []
        for trace in traces:
            trace.kept = trace.alive() is not None
        return Evidence(
            place=series.place, unit=series.unit, iterations=iterations, slope=slope,
            pinned=pinned, pinned_bytes=pinned_bytes, generators=series.rate("generators"),
            traces=traces, datasets=self._signs.datasets(first.counts),
        )  # fmt: skip

    def _collected(self, series: LoopSeries) -> float:
        """Collect garbage, and say how many bytes of what has grown were just that."""
        before = self._read(series.readings[-1].iteration)
        gc.collect()
        after = self._read(series.readings[-1].iteration)
        return max(
            before.resident - after.resident,
            (before.heap or 0) - (after.heap or 0),
            before.counts.device_bytes - after.counts.device_bytes if before.counts else 0,
        )

    def _held(self, series: LoopSeries, evidence: Evidence) -> list[Finding]:
        """Containers that have grown since the first count; or from nothing, without one."""
        since, before = series.census or (series.readings[0].iteration, {})
        now = count_holders(self._weigh)
        iterations = series.readings[-1].iteration - since
        if iterations < 1:
            return []
        found: list[Finding] = []
        for identity, held in grown_holders(before, now, iterations):
            if held.bytes / iterations < 0.2 * evidence.slope or len(found) == 3:
                break
            line_of = None if self._signs is None else self._signs.lines.line_of
            name, made = name_of_holder(identity, self._user_frames(), line_of)
            found.append(
                holder_finding(evidence, held.kind, name, made, held.count / iterations,
                               held.bytes / iterations, held.bound)
            )  # fmt: skip
        self._stop_noting()
        return _named_best(found)

    def _user_frames(self) -> list[types.FrameType]:
        """The frames of the user's code that are running now, the innermost first."""
        frames = [] if self._frame is None else [self._frame]
        frame: types.FrameType | None = sys._getframe(1)
        while frame is not None:
            if is_users_file(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        return frames

    def _unexplained(self, series: LoopSeries, memory: Growth, evidence: Evidence) -> list[Finding]:
        if memory.slope < _UNEXPLAINED or not series.surely_grows():
            return []
        text = (
            f"Memory grows by {format_bytes(memory.slope)} each {series.unit} (chance of seeing "
            f"this without growth: {memory.probability:.2g}), but no container, graph or trace "
            "that was looked at holds it."
        )
        # A buffer of tf.data that fills, or a library's cache, looks the same for a while.
        severity = "warning" if memory.readings >= 20 and series.unit != "step" else "note"
        fix = (
            "Look at what the loop calls outside of Python; legroom.isolated(f, …) gives all of "
            "it back, whatever it is."
        )
        return [
            finding("LR110", text, place=series.place, bytes=round(memory.slope),
                    per=series.unit, fix=fix, severity=severity, data={"loop": series.place})
        ]  # fmt: skip

    def _say(self, cause: Finding) -> None:
        key = (cause.id, str(cause.data.get("holder") or cause.place))
        before = self._found.get(key)
        if before is None:
            emit("finding", "", finding=cause.to_dict())
        elif before.data.get("made_at") and not cause.data.get("made_at"):
            # Lines are noted only for a few iterations.
            cause = dataclasses.replace(before, bytes=cause.bytes)
        self._found[key] = cause

    def _weigh(self, value: Any) -> tuple[str, int] | None:
        if type(value).__name__ == "ndarray" and type(value).__module__ == "numpy":
            return ("array", int(value.nbytes)) if value.nbytes > 256 else None
        if isinstance(value, (bytes, bytearray, str)) and len(value) > 4096:
            return type(value).__name__, len(value)
        if self._signs is not None:
            from legroom.backends.tensorflow.growth import weigh

            with contextlib.suppress(Exception):
                return weigh(value)
        return None


def _named_best(found: list[Finding]) -> list[Finding]:
    """One finding for each line that makes things: what it makes may be seen in several holders.

    A dictionary that a dictionary holds, or Python's copy of a function's variables, says less
    than the container that has a name.
    """
    best: dict[str, Finding] = {}
    for cause in found:
        line = str(cause.data.get("made_at") or cause.data.get("holder"))
        named = str(cause.data.get("holder")).startswith("the ")
        if line not in best or (named and not str(best[line].data["holder"]).startswith("the ")):
            best[line] = cause
    return list(best.values())
