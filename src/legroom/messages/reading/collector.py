"""From sightings to incidents: which of them tell of the same failure, and in what order.

Several failures lie in one log when there were several devices, or retries, or several processes
that wrote to it in turn. Accounts of one are put together here, and the failures kept apart.
"""

from __future__ import annotations

from legroom.messages.reading.bfc import Dump
from legroom.messages.reading.incident import CLOSE, NEAR, Incident
from legroom.messages.reading.scan import Found, Hint, Sighting
from legroom.messages.reading.sizes import device_of_allocator

__all__ = ["Collector"]

_KEPT = 64  # incidents of a kind kept, from the start; of later ones the last is kept
_HINTS_KEPT = 256
# Details that mean something right beside a failure only.
_BESIDE = frozenset(("node", "op", "wrapped", "layer"))


class Collector:
    """Puts what a scanner finds together, in the order of the log and in bounded memory.

    Attributes:
        incidents: Failures, oldest first. Beyond a number only the last one is kept.
        deaths: Processes that ended, oldest first, likewise.
        notes: What was said and is no failure, the first of each kind.
        failures: How many times memory ran out, by device and process.
    """

    def __init__(self) -> None:
        self.incidents: list[Incident] = []
        self.deaths: list[Incident] = []
        self.notes: dict[str, Incident] = {}
        self._counted = 0
        self._episode = 0
        self._episode_over = False
        self._hints: list[Hint] = []
        # Details and a dump that stand before what they belong to.
        self._waiting: list[Found] = []
        self._dump: Dump | None = None
        self._dump_end = 0

    @property
    def failures(self) -> int:
        """How many times memory ran out; ops that fail side by side in one step count once."""
        return self._counted + len(
            {one.place for one in self.incidents if one.is_oom and one.fatal}
        )

    def feed(self, found: Sighting | Found | Hint) -> None:
        """Take what was found, in the order of the log."""
        if isinstance(found, Hint):
            if len(self._hints) >= _HINTS_KEPT:
                del self._hints[_HINTS_KEPT // 2]
            self._hints.append(found)
        elif isinstance(found, Found):
            self._detail(found)
        elif found.pattern.kind == "note" or found.harmless:
            self.notes.setdefault(found.pattern.name, Incident.of(found))
        elif found.pattern.kind == "death":
            self._death(found)
        else:
            self._failure(found)

    def framework_near(self, incident: Incident) -> str | None:
        """Whose signs stand nearest to an incident."""
        return (
            min(
                self._hints, key=lambda hint: abs(hint.offset - incident.start), default=Hint("", 0)
            ).framework
            or None
        )

    def _failure(self, sighting: Sighting) -> None:
        latest = reversed(self.incidents[-4:])
        incident = next((one for one in latest if one.tells_of(sighting)), None)
        if incident is not None:
            incident.take(sighting)
        else:
            # Ops run side by side and fail side by side; what fails after the exception was out
            # has failed another time.
            self._episode += self._episode_over
            self._episode_over = False
            incident = Incident.of(sighting)
            incident.episode = self._episode
            self._keep(self.incidents, incident)
        self._episode_over |= sighting.pattern.stage == 3
        for found in self._waiting:
            if incident.end - found.offset <= 4 * CLOSE:
                incident.take_detail(found)
        self._waiting.clear()
        if self._dump is not None and incident.dump is None and self._fits(self._dump, incident):
            incident.dump, self._dump = self._dump, None

    def _death(self, sighting: Sighting) -> None:
        last = self.deaths[-1] if self.deaths else None
        # "Segmentation fault", "(core dumped)" and "exit code 139" are one death; the kernel's
        # lines and the shell's "Killed" are another.
        if (
            last is not None
            and sighting.offset - last.end <= CLOSE
            and not (last.worker and sighting.worker and last.worker != sighting.worker)
            and (last.is_oom == sighting.pattern.is_oom or sighting.pattern.is_oom is None)
        ):
            last.take(sighting)
        else:
            self._keep(self.deaths, Incident.of(sighting))

    def _detail(self, found: Found) -> None:
        target = self._target(found)
        if found.name in Dump.DETAILS:
            self._dump_detail(found, target)
        elif target is not None and (
            found.name not in _BESIDE or found.offset - target.end <= CLOSE
        ):
            target.take_detail(found)
        elif len(self._waiting) < 256:
            self._waiting.append(found)

    def _dump_detail(self, found: Found, target: Incident | None) -> None:
        device, _ = device_of_allocator(found.groups.get("allocator"))
        if target is not None and (
            (target.dump is not None and target.dump.ended)
            or (device and target.facts.device and device != target.facts.device)
        ):
            target = None  # this one is the next failure's
        if target is not None:
            dump = target.dump = target.dump or Dump()
            target.end = max(target.end, found.offset)
        else:
            if self._dump is None or self._dump.ended or found.offset - self._dump_end > NEAR:
                self._dump = Dump()
            dump, self._dump_end = self._dump, found.offset
        last_word = found.before.split()[-1:] or [""]
        # "74 Chunks of size 256": the number stands before what is looked for.
        count = int(last_word[0]) if last_word[0].isdecimal() and len(last_word[0]) < 12 else 0
        dump.add(found.name, found.groups, count)

    def _fits(self, dump: Dump, incident: Incident) -> bool:
        device, mine = dump.facts.device, incident.facts.device
        return incident.end - self._dump_end <= NEAR and (not device or not mine or device == mine)

    def _target(self, found: Found) -> Incident | None:
        """The incident that a detail belongs to: the latest of its worker, if it is near."""
        pool = self.deaths if found.name == "cgroup" else self.incidents
        for incident in reversed(pool[-4:]):
            if found.worker and incident.worker and found.worker != incident.worker:
                continue
            return incident if found.offset - incident.end <= NEAR else None
        return None

    def _keep(self, pool: list[Incident], incident: Incident) -> None:
        """Keep an incident, at the cost of the last of its kind where there are many."""
        alike = [one for one in pool if one.is_oom == incident.is_oom]
        if len(alike) >= _KEPT:
            pool.remove(alike[-1])
            if pool is self.incidents and incident.is_oom and alike[-1].fatal:
                self._counted += all(alike[-1].place != one.place for one in (alike[-2], incident))
        pool.append(incident)
