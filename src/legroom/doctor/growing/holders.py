"""Who has come to hold more: counts before and after, turned into findings."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Collection, Sequence
from typing import Any

from legroom.backends.base import imported
from legroom.core.findings import Finding
from legroom.doctor.growing.amounts import Count, Held
from legroom.doctor.growing.census import count_holders, grown_holders, name_of_holder
from legroom.doctor.growing.culprits import Evidence
from legroom.doctor.growing.object_findings import Keeping, holder_finding
from legroom.doctor.growing.roots import grown_roots, weigh_roots

__all__ = ["Holders"]

_SHARE = 0.2  # of the growth: who takes in less is not the cause
_NAMED = 8  # containers that are looked for by name, of which
_MOST = 3  # are said
_SILENT = ("data set", "iterator", "gradient tape")


class Holders:
    """Counts who holds what, and names who has come to hold more.

    Attributes:
        signs: The framework's signs, once there is a framework.
    """

    def __init__(self) -> None:
        self.signs: Any = None

    def count(self, iteration: int, frames: Sequence[types.FrameType]) -> Count:
        """Count now, and note from now on which lines make tensors.

        Args:
            iteration: After which iteration.
            frames: The user's functions that are running.
        """
        if self.signs is not None:
            self.signs.lines.start()
        return Count(iteration, count_holders(self.weigh), weigh_roots(frames, self.weigh))

    def stop_noting(self) -> None:
        """Note no lines any more."""
        if self.signs is not None:
            self.signs.lines.stop()

    def grown(
        self,
        seen: Evidence,
        before: Count,
        iteration: int,
        frames: Sequence[types.FrameType],
        *,
        kinds: Collection[str] = (),
    ) -> list[Finding]:
        """The findings about who has come to hold more since a count.

        Args:
            seen: The loop.
            before: The count.
            iteration: Which iteration it is now.
            frames: The user's functions that are running.
            kinds: What has to be held; anything without it.
        """
        iterations = iteration - before.iteration
        if iterations < 1:
            return []
        found = self._containers(seen, before, iterations, frames, kinds)
        if not found and not kinds:
            found = self._roots(seen, before, iterations, frames) or self._lines(seen, iterations)
        self.stop_noting()
        return found

    def _containers(
        self,
        seen: Evidence,
        before: Count,
        iterations: int,
        frames: Sequence[types.FrameType],
        kinds: Collection[str],
    ) -> list[Finding]:
        grown = [
            (identity, held)
            for identity, held in grown_holders(
                before.containers, count_holders(self.weigh), iterations
            )
            if not kinds or held.kind in kinds
        ]
        heavy = [
            (identity, held)
            for identity, held in grown
            if held.bytes and (kinds or held.bytes / iterations >= _SHARE * seen.slope)
        ]
        # What does not tell how much it holds is suspected where nothing else is.
        silent = [
            (identity, held) for identity, held in grown if not held.bytes or held.kind in _SILENT
        ]
        found = []
        for identity, held in heavy[:_NAMED] or silent[:_NAMED]:
            line_of = None if self.signs is None else self.signs.lines.line_of
            name, made = name_of_holder(identity, frames, line_of)
            # One that has neither a name nor a line is no help; and another may have its address.
            if made or not name.startswith("a "):
                found.append(holder_finding(seen, _keeping(held, name, made, iterations)))
        return _named_best(found)[:_MOST]

    def _roots(
        self, seen: Evidence, before: Count, iterations: int, frames: Sequence[types.FrameType]
    ) -> list[Finding]:
        if not before.roots:
            return []
        return [
            holder_finding(seen, _keeping(held, f"`{name}`", "", iterations))
            for name, held in grown_roots(
                before.roots, weigh_roots(frames, self.weigh), iterations
            )[:1]
            if not held.bytes or held.bytes / iterations >= _SHARE * seen.slope
        ]

    def _lines(self, seen: Evidence, iterations: int) -> list[Finding]:
        """The line whose tensors are still there, whoever holds them."""
        if self.signs is None:
            return []
        lines = self.signs.lines.alive(self.weigh)
        line, (count, size) = max(lines.items(), key=lambda item: item[1][1], default=("", (0, 0)))
        if not line or count < 0.5 * iterations or size / iterations < _SHARE * seen.slope:
            return []
        return [holder_finding(seen, _keeping(Held("tensor", count, size), "", line, iterations))]

    def weigh(self, value: Any) -> tuple[str, int] | None:
        """What an object is and weighs; see `legroom.doctor.growing.amounts.Weigh`."""
        if type(value).__name__ == "ndarray" and type(value).__module__ == "numpy":
            return ("array", int(value.nbytes)) if value.nbytes > 256 else None
        if isinstance(value, (bytes, bytearray, str)) and len(value) > 4096:
            return type(value).__name__, len(value)
        for backend in imported():
            with contextlib.suppress(Exception):
                if (weight := backend.growth.weigh(value)) is not None:
                    return weight
        return None


def _keeping(held: Held, name: str, made: str, iterations: int) -> Keeping:
    return Keeping(
        held.kind, name, made, held.count / iterations, held.bytes / iterations, held.bound
    )


def _named_best(found: list[Finding]) -> list[Finding]:
    """One finding for each line that makes things: what it makes may be seen in several holders.

    A dictionary that a dictionary holds, or Python's copy of a function's variables, says less
    than the container that has a name.
    """
    best: dict[str, Finding] = {}
    for cause in found:
        line = str(cause.data.get("made_at") or (cause.data["kind"], cause.bytes))
        named = str(cause.data.get("holder")).startswith("the ")
        if line not in best or (named and not str(best[line].data["holder"]).startswith("the ")):
            best[line] = cause
    return list(best.values())
