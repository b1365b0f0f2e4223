"""Tests the readings of a loop, and finds out what makes them grow."""

from __future__ import annotations

import dataclasses
import gc
import types
from collections.abc import Callable, Sequence
from typing import Any

from legroom.core.findings import Finding
from legroom.core.places import short_place
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding
from legroom.doctor.growing.amounts import Count
from legroom.doctor.growing.culprits import Evidence, made_anew, name_culprits
from legroom.doctor.growing.holders import Holders
from legroom.doctor.growing.series import LoopReading, LoopSeries
from legroom.doctor.growing.trend import Growth

__all__ = ["UNEXPLAINED", "Examiner"]

_GARBAGE = 0.6  # of the growth, gone after a collection: it was no growth
UNEXPLAINED = "LR110"
_WORTH = 1_000_000  # bytes an iteration: what nothing explains has to be more than this
_LONG = 20  # readings, after which growth that nothing explains is no longer a cache that fills
_EVERY = 0.9  # of the iterations
_KEPT_MODELS = ("model", "History")


class Examiner:
    """Names causes.

    Args:
        read: Reads memory, and what is counted, now.
        frames: The user's functions that are running.

    Attributes:
        holders: Who counts and names what the user's own objects hold.
    """

    def __init__(
        self,
        read: Callable[[int], LoopReading],
        frames: Callable[[], Sequence[types.FrameType]],
    ) -> None:
        self._read = read
        self._frames = frames
        self._signs: Any = None
        self.holders = Holders()

    @property
    def signs(self) -> Any:
        """The framework's signs, once there is a framework."""
        return self._signs

    @signs.setter
    def signs(self, signs: Any) -> None:
        self._signs = self.holders.signs = signs

    def examine(self, series: LoopSeries, known: Sequence[Finding]) -> list[Finding]:
        """Test the readings of a loop, and name what makes them grow.

        Args:
            series: The readings.
            known: What was found before.
        """
        if series.short:
            return self._examine_short(series)
        memory = series.memory()
        evidence = self._evidence(series, memory)
        signs = any((evidence.pinned, evidence.generators, evidence.traces))
        if not signs and not series.worth_it(memory):
            return []
        # What is garbage only waits to go: neither memory nor traces are to be judged before.
        garbage = self._collected(series)
        if memory.grows:
            # It has gathered since the loop began, and not only in the iterations that count.
            lasting = max(memory.slope - garbage / series.readings[-1].iteration, 0.0)
            steady = lasting < (1 - _GARBAGE) * memory.slope
            memory = dataclasses.replace(
                memory, slope=lasting, verdict="steady" if steady else "grows"
            )
            if steady and not signs:
                series.restart()
                return []
        # Anew: what was garbage is gone.
        evidence = self._evidence(series, memory, garbage / series.readings[-1].iteration)
        causes = name_culprits(evidence)
        if any("holder" in one.data and one.data["loop"] == series.place for one in known):
            return causes
        if causes:
            return causes + self._held_beside(series, evidence)
        if not series.worth_it(memory):
            return []
        return self._held(series, evidence) or self._unexplained(series, memory, evidence)

    def _evidence(self, series: LoopSeries, memory: Growth, garbage: float = 0.0) -> Evidence:
        first, last = series.counted[0], series.readings[-1]
        iterations = max(last.iteration - first.iteration, 1)
        if self._signs is None or first.counts is None:
            return Evidence(series.place, series.unit, iterations, memory.slope)
        slope = memory.slope or max(series.rough_slope() - garbage, 0.0)
        pinned, pinned_bytes = 0.0, 0.0
        if series.rate("pinned"):
            number, weight = self._signs.pinned_bytes(last.counts.pinned - first.counts.pinned)
            pinned, pinned_bytes = number / iterations, weight / iterations
        return Evidence(
            place=series.place, unit=series.unit, iterations=iterations, slope=slope,
            pinned=pinned, pinned_bytes=pinned_bytes, generators=series.rate("generators"),
            traces=self._traces(first) if series.rate("traces") else [],
            datasets=self._signs.datasets(first.counts),
        )  # fmt: skip

    def _traces(self, since: LoopReading) -> list[Any]:
        traces: list[Any] = self._signs.traces(since.counts)
        for trace in traces:
            trace.kept = trace.alive() is not None
        return traces

    def _examine_short(self, series: LoopSeries) -> list[Finding]:
        """A loop of a few rounds is worth a word if each of them leaves much behind."""
        if not series.leaps():
            return []
        first, last = series.readings[0], series.readings[-1]
        iterations = last.iteration - first.iteration
        lasting = series.leaps() - self._collected(series) / iterations
        if lasting < (1 - _GARBAGE) * series.leaps():
            return []
        evidence = Evidence(series.place, series.unit, iterations, lasting)
        if self._signs is not None and first.counts is not None:
            number, weight = self._signs.pinned_bytes(last.counts.pinned - first.counts.pinned)
            evidence = dataclasses.replace(
                evidence, pinned=number / iterations, pinned_bytes=weight / iterations,
                traces=self._traces(first),
            )  # fmt: skip
        # A few models that are kept are an ensemble, and meant.
        held = self._held(series, evidence, _KEPT_MODELS)
        held = [one for one in held if one.data["count"] >= _EVERY]
        if not held:
            causes = name_culprits(evidence)
            if causes:
                return causes
            held = self._held(series, evidence)
        return [dataclasses.replace(one, severity="note") for one in held]

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

    def _held(
        self, series: LoopSeries, evidence: Evidence, kinds: Sequence[str] = ()
    ) -> list[Finding]:
        """Who has come to hold more since the first count; or from nothing, without one."""
        before = series.census or Count(series.readings[0].iteration - 1, {}, {})
        held = self.holders.grown(
            evidence, before, series.readings[-1].iteration, self._frames(), kinds=kinds
        )
        # Tensors that nobody was found to hold: a cache that fills has them, and says so itself.
        return [one for one in held if one.data["holder"] or not self._cache()]

    def _cache(self) -> str:
        """The line of a data set whose cache may be filling; empty where there is none."""
        return "" if self._signs is None else self._signs.fills_a_cache()

    def _held_beside(self, series: LoopSeries, evidence: Evidence) -> list[Finding]:
        """What the user's objects hold beside what TensorFlow does, and of it."""
        # Tensors that are kept as well: the device's own count tells, to the byte.
        if series.device_slope() - evidence.pinned_bytes > _WORTH:
            return self._held(series, evidence)
        return self._held(series, evidence, _KEPT_MODELS) if evidence.pinned else []

    def _unexplained(self, series: LoopSeries, memory: Growth, evidence: Evidence) -> list[Finding]:
        if not series.surely_grows() or series.filling:
            return []
        if functions := made_anew(evidence):
            return functions
        if memory.slope < _WORTH:
            return []
        text = (
            f"Memory grows by {format_bytes(memory.slope)} each {series.unit} (chance of seeing "
            f"this without growth: {memory.probability:.2g}), but no container, graph or trace "
            "that was looked at holds it."
        )
        fix = (
            "Look at what the loop calls outside of Python; legroom.isolated(f, …) gives all of "
            "it back, whatever it is."
        )
        # A buffer of tf.data that fills, or a library's cache, looks the same for a while.
        severity = "warning" if memory.readings >= _LONG and series.unit != "step" else "note"
        if cache := self._cache():
            text += f" The cache of the data set at {short_place(cache)} may be filling."
            fix = "If it is the cache, nothing: it ends with the first epoch. Else: " + fix
            severity = "note"
        return [
            finding(UNEXPLAINED, text, place=series.place, bytes=round(memory.slope),
                    per=series.unit, fix=fix, severity=severity, data={"loop": series.place})
        ]  # fmt: skip
