"""Why a child died, and what to do about it. Pure: it reads what others have gathered.

Memory often runs out with no exception: the kernel kills, oneDNN's allocator returns nothing and
is used all the same, XLA aborts on a failed check. A death counts as memory's when something says
so: the kernel's own count, the last lines of stderr, a device whose memory was all in use, or a
step that had been tried for the first time with a slice that memory may well have been too small
for.
"""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Sequence
from typing import TypeVar

from legroom.core.events import (
    Attempted,
    AttemptPassed,
    Event,
    MemorySampled,
    OfAttempt,
    OfSnapshot,
    RanOut,
)
from legroom.core.units import format_bytes
from legroom.supervisor.options import Barred

__all__ = ["Death", "Restarts", "read_death"]

E = TypeVar("E", bound=Event)

# How far a prediction of what a step needs may be off.
_DOUBT = 1.9
# After a death, slices must be smaller than this part of what died.
_CLEARLY_LESS = 0.7
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGTRAP}
)


@dataclasses.dataclass(frozen=True)
class Death:
    """How a child ended.

    Attributes:
        code: Its exit code, or the negative number of a signal.
        memory: Whether memory was the reason.
        of_host: Whether it was the host's memory, as the kernel sees it.
        why: What tells so, in words.
        training: The training that ran, if one did.
        subject: What the slice was of.
        slice_size: The slice that ran, if any.
        proven: The largest smaller slice that had worked.
        place: Where in the training it was, as far as snapshots tell.
    """

    code: int
    memory: bool = False
    of_host: bool = False
    why: str = ""
    training: int | None = None
    subject: str = "batch"
    slice_size: int | None = None
    proven: int | None = None
    place: tuple[object, ...] = ()


def read_death(
    code: int, events: Sequence[Event], *, kernel_kills: int = 0, last_lines: str = ""
) -> Death:
    """Read a death.

    Args:
        code: The child's exit code, or the negative number of the signal it died by.
        events: What this child has told.
        kernel_kills: How many processes the kernel has killed for memory meanwhile.
        last_lines: The end of what it wrote to stderr, where that can be read.
    """
    if code >= 0:
        return Death(code)
    number = -code
    attempt = _last(events, OfAttempt)
    death = Death(code, place=_place(events))
    if attempt is not None:
        death = dataclasses.replace(
            death,
            training=attempt.training,
            subject=attempt.subject,
            slice_size=attempt.slice_size,
            proven=_proven(events, attempt),
        )
    if number == signal.SIGKILL and kernel_kills > 0:
        return dataclasses.replace(
            death, memory=True, of_host=True, why="the kernel killed it for memory"
        )
    if number not in _CRASHES:
        return death
    name = signal.Signals(number).name
    from legroom.messages import diagnose_text  # all its patterns, which most runs never need

    if last_lines and diagnose_text(last_lines).is_oom:
        return dataclasses.replace(
            death, memory=True, why=f"it ended by {name} right after memory ran out"
        )
    ran_out = _last(events, RanOut)
    if ran_out is not None and ran_out.broken and ran_out.slice_size is not None:
        why = "a compiled step ran out, which breaks TensorFlow's memory on a CPU"
        return dataclasses.replace(death, memory=True, slice_size=ran_out.slice_size, why=why)
    seen = _last(events, MemorySampled)
    if attempt is not None and seen is not None and seen.full:
        filled = format_bytes(seen.device_bytes or 0)
        why = f"it ended by {name} when all of the device's memory was in use ({filled})"
        return dataclasses.replace(death, memory=True, why=why)
    if not isinstance(attempt, Attempted):  # none, or one that has passed
        return death
    need, free = attempt.need_bytes, attempt.free_bytes
    if need and free and need * _DOUBT > free:
        why = (
            f"it ended by {name} in the first step of this size, which needs about "
            f"{format_bytes(need)} where {format_bytes(free)} were free"
        )
        return dataclasses.replace(death, memory=True, why=why)
    if ran_out is not None:
        return dataclasses.replace(
            death, memory=True, why=f"it ended by {name} when memory had just run out"
        )
    return death


class Restarts:
    """Decides whether a script that memory killed is started again, and with what plan.

    Args:
        most: How often at most.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._seen: set[tuple[object, ...]] = set()
        self.count = 0
        self.barred: dict[tuple[int | None, str], int] = {}
        self.lean = False

    def plan(self) -> tuple[Barred, ...]:
        """The slice sizes that the next child must not use."""
        return tuple(
            Barred(training, subject, size) for (training, subject), size in self.barred.items()
        )

    def answer(self, death: Death) -> str | None:
        """Choose a smaller plan.

        Returns:
            None if there is one, else why the script is not started again.
        """
        if death.slice_size is None:
            return (
                "No training step had run yet: it is the script itself that holds the memory, in "
                "its data or its model, and smaller slices can't help. Load less of the data at "
                "a time (a keras.utils.PyDataset or tf.data reads batch by batch)"
            )
        if self.count >= self._most:
            return f"It was started again {self.count} times already (--max-restarts)"
        key = (death.training, death.subject)
        here = (*key, death.slice_size, death.place)
        if here in self._seen:
            return (
                "It died at the same place before, with the same slices, and has made no progress "
                "since: it is not tried a third time"
            )
        if death.slice_size <= 1 and not death.of_host:
            return "It ran one sample at a time already: there is no smaller plan"
        self._seen.add(here)
        if death.slice_size > 1:
            # Clearly below what died: a death costs a whole start, and what was predicted for the
            # size that died was wrong, so it says little about sizes just below it.
            size = max(2, int(death.slice_size * _CLEARLY_LESS))
            if death.proven is not None:
                size = max(2, min(size, death.proven + 1))
            self.barred[key] = min(size, self.barred.get(key, size))
        self.lean = self.lean or death.of_host
        self.count += 1
        return None


def _last(events: Sequence[Event], kind: type[E]) -> E | None:
    """The last event of a kind."""
    return next((event for event in reversed(events) if isinstance(event, kind)), None)


def _proven(events: Sequence[Event], attempt: OfAttempt) -> int | None:
    """The largest slice below the one of an attempt that has worked in the same training."""
    return max(
        (
            event.slice_size
            for event in events
            if isinstance(event, AttemptPassed)
            and (event.training, event.subject) == (attempt.training, attempt.subject)
            and event.slice_size is not None
            and event.slice_size < (attempt.slice_size or 0)
        ),
        default=None,
    )


def _place(events: Sequence[Event]) -> tuple[object, ...]:
    """Where the newest snapshot is: whoever got further has made progress."""
    last = _last(events, OfSnapshot)
    return () if last is None else (last.training, last.epoch, last.step, last.finished)
