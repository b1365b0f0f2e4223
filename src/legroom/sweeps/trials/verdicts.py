"""What becomes of a trial whose process has ended: done, started again, or failed. Pure.

A trial that does not fit into its cap leaves before it computes any of what does not, and says
what it needs: it is queued again with a larger cap, and goes on where its last snapshot was. Only
one that has all the memory of the sweep runs in slices. Running out in a way that ends the process
is answered in the same way, and at last by smaller slices, as `legroom run` does.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence

from legroom.core.events import Event, Planned
from legroom.core.units import format_bytes, format_seconds
from legroom.supervisor.deaths import Death, Restarts, read_death
from legroom.supervisor.options import Barred
from legroom.sweeps.trials.trial import Answer, Status

__all__ = ["NEEDS_MORE", "Again", "Done", "Ending", "Failed", "Verdicts", "needs_more"]

# The exit code of a process that needs a larger cap (EX_TEMPFAIL).
NEEDS_MORE = 75
_MOST_RESTARTS = 10
_MOST_KILLS = 3
_MORE = 1.5
_ROOM = 1.05


@dataclasses.dataclass(frozen=True)
class Ending:
    """How a process ended.

    Attributes:
        code: Its exit code, or the negative number of the signal it died by.
        answer: What it said itself.
        events: What its journal tells.
        kernel_kills: How many processes the kernel has killed for memory meanwhile.
        last_lines: The end of its log.
        timed_out: The seconds after which it was ended, if it took too long.
    """

    code: int
    answer: Answer | None = None
    events: Sequence[Event] = ()
    kernel_kills: int = 0
    last_lines: str = ""
    timed_out: float | None = None


@dataclasses.dataclass(frozen=True)
class Done:
    """It has ended well."""

    answer: Answer


@dataclasses.dataclass(frozen=True)
class Again:
    """It is queued again.

    Attributes:
        why: The reason, in words.
        need_bytes: What its cap must be, if it is to be larger.
        of_host: Whether the machine's memory had run out.
    """

    why: str
    need_bytes: int | None = None
    of_host: bool = False


@dataclasses.dataclass(frozen=True)
class Failed:
    """It has failed."""

    status: Status
    why: str


def needs_more(event: Event, cap_bytes: int) -> bool:
    """Whether an event says that a training batch is cut because of the cap, and nothing else."""
    return (
        isinstance(event, Planned)
        and event.of_training
        and event.slices > 1
        and event.reason in ("planned", "shrink", "oom")
        and (event.budget_bytes is None or event.budget_bytes >= 0.95 * cap_bytes)
    )


class Verdicts:
    """Judges the ends of one trial's processes, one after the other.

    Args:
        memory: The most that its cap can be.
        unsure: Whether running out may end the process in any way, and not as an error of memory:
            so it does on a CPU with oneDNN.

    Attributes:
        careful: Whether the next process is to run without that.
    """

    def __init__(self, memory: int, *, unsure: bool = False) -> None:
        self._memory = memory
        self._unsure = unsure
        self.careful = False
        self._restarts = Restarts(_MOST_RESTARTS)
        self._kills = 0

    @property
    def barred(self) -> tuple[Barred, ...]:
        """Slice sizes that the next process must not use."""
        return self._restarts.plan()

    @property
    def lean(self) -> bool:
        """Whether the next process is to read less ahead."""
        return self._restarts.lean

    def judge(self, end: Ending, cap: int) -> Done | Again | Failed:
        """What becomes of the trial.

        Args:
            end: How its process ended.
            cap: The cap that it had.
        """
        answer = end.answer
        if answer is not None and answer.outcome == "returned":
            return Done(answer)
        if end.timed_out is not None:
            limit = format_seconds(end.timed_out)
            return Failed("timed_out", f"It was ended after {limit}, its time limit (time_limit=).")
        if answer is not None:
            return self._raised(answer, end.last_lines, cap)
        if end.code == NEEDS_MORE and cap < self._memory:
            return self._larger(cap, _told_need(end.events), "it needs more than its cap")
        if end.code >= 0:
            return Failed("failed", f"It ended with exit code {end.code} before `train` returned.")
        death = read_death(
            end.code, end.events, kernel_kills=end.kernel_kills, last_lines=end.last_lines
        )
        if death.memory:
            return self._died_of_memory(death, cap)
        name = signal.Signals(-end.code).name
        if -end.code in (signal.SIGKILL, signal.SIGTERM):
            self._kills += 1
            if self._kills <= _MOST_KILLS:
                return Again(f"it was killed ({name})")
            return Failed("failed", f"It was killed {self._kills} times ({name}).")
        if self._begin_careful():
            return Again(f"it died by {name}, perhaps for lack of memory")
        return Failed("failed", f"Its process died by {name}, and not for lack of memory.")

    def _raised(self, answer: Answer, last_lines: str, cap: int) -> Again | Failed:
        before = ""
        if not answer.short:
            # With oneDNN, memory that was not there can show as any error of the op after it.
            from legroom.messages import diagnose_text

            diagnosis = diagnose_text(last_lines)
            if not diagnosis.is_oom:
                return Failed("failed", answer.error)
            before = f"Memory had run out before: {diagnosis.story}"
        need = answer.need_bytes
        if cap < self._memory and (need or 0) <= self._memory:
            return self._larger(cap, need, "it ran out with a cap")
        if before and self._begin_careful():
            return Again("it ran out of memory")
        if before:
            return Failed("failed", f"{answer.error.rstrip('.')}. {before}")
        return Failed("cannot_fit", answer.story or answer.error)

    def _died_of_memory(self, death: Death, cap: int) -> Again | Failed:
        if cap < self._memory and not death.of_host:
            return self._larger(cap, None, "it died of memory with a cap")
        refusal = self._restarts.answer(death)
        if death.of_host and refusal is not None:
            # Others may have held it: with fewer beside it, it may well fit.
            self._kills += 1
            refusal = None if self._kills <= _MOST_KILLS else refusal
        if refusal is None or self._begin_careful():
            return Again(f"it died of memory ({death.why})", of_host=death.of_host)
        return Failed("cannot_fit", f"It died of memory: {death.why}. {refusal}.")

    def _begin_careful(self) -> bool:
        """Have the next process run so that running out is an error; False if this one did."""
        begin = self._unsure and not self.careful
        self.careful = self.careful or begin
        return begin

    def _larger(self, cap: int, need: int | None, why: str) -> Again:
        size = min(self._memory, max(int((need or 0) * _ROOM), int(cap * _MORE)))
        return Again(f"{why} of {format_bytes(cap)}", need_bytes=size)


def _told_need(events: Sequence[Event]) -> int | None:
    planned = next((event for event in reversed(events) if isinstance(event, Planned)), None)
    return None if planned is None else planned.need_bytes
