"""Incident: one failure, with all the accounts of it.

One failure is told several times: by the driver, by the allocator with its dump, by the op, and by
the exception, which a library may wrap and print again. An incident knows which sightings can be
further accounts of itself.
"""

from __future__ import annotations

import dataclasses
import re

from legroom.messages.patterns import Pattern
from legroom.messages.reading.bfc import Dump
from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.ops import layer_of_op, plain_op
from legroom.messages.reading.scan import Found, Sighting
from legroom.messages.reading.sizes import (
    device_of_path,
    dtype_name,
    parse_bytes,
    parse_shape,
)
from legroom.messages.reading.xla import Program

__all__ = ["CLOSE", "NEAR", "Incident"]

NEAR = 256 * 1024  # how far apart two accounts of one failure can be; a dump lies between
CLOSE = 8 * 1024  # how far a node's name or an echo can be from what it belongs to
_PLACED = re.compile(r'_device="(/[^"]{1,200})"')


@dataclasses.dataclass(slots=True)
class Incident:
    """One failure, note or death, with all that was told of it.

    Attributes:
        pattern: The wording that tells it best.
        facts: All accounts together.
        start: Where its first account stands.
        end: Where its last account so far stands.
        text: The line that tells it best, cleaned.
        worker: Which process of several it happened in.
        harmless: Whether it says itself that it is no failure.
        told: How many accounts there were.
        stage: Who told it last.
        dump: The allocator's dump, if there is one.
        program: XLA's account, if there is one.
        arguments: Shapes and types of the tensors that the failing layer was called with.
        sizes: Sizes that the pool tried to grow by.
        episode: Which of several failing steps it belongs to.
    """

    pattern: Pattern
    facts: Facts
    start: int
    end: int
    text: str
    worker: str | None = None
    harmless: bool = False
    told: int = 1
    stage: int = 3
    dump: Dump | None = None
    program: Program = dataclasses.field(default_factory=Program)
    arguments: list[tuple[tuple[int, ...], str]] = dataclasses.field(default_factory=list)
    sizes: list[int] = dataclasses.field(default_factory=list)
    episode: int = 0

    @property
    def place(self) -> tuple[int, str | None, str | None]:
        """Where and in which step: incidents of one place are one failure to a user."""
        return self.episode, self.facts.device, self.worker

    @property
    def is_oom(self) -> bool | None:
        """Whether memory ran out; None where it can't be told."""
        return self.pattern.is_oom

    @property
    def finding(self) -> str:
        """The page that tells more."""
        return "allocator-not-a-failure" if self.harmless else self.pattern.finding

    @property
    def fatal(self) -> bool:
        """Whether the work was lost."""
        # A pool that is refused tries again with a tenth less, until it gets its way.
        shrinking = len(self.sizes) > 1 and all(
            later < earlier for earlier, later in zip(self.sizes, self.sizes[1:], strict=False)
        )
        return self.pattern.fatal and not self.harmless and not (self.pattern.weak and shrinking)

    @classmethod
    def of(cls, sighting: Sighting) -> Incident:
        """The incident that one sighting begins."""
        incident = cls(
            pattern=sighting.pattern,
            facts=sighting.facts.replace(),
            start=sighting.offset,
            end=sighting.offset,
            text=sighting.text,
            worker=sighting.worker,
            harmless=sighting.harmless,
            stage=sighting.pattern.stage,
        )
        incident._note_size(sighting)
        return incident

    def tells_of(self, sighting: Sighting) -> bool:
        """Whether a later sighting is another account of this incident."""
        pattern, mine, other = sighting.pattern, self.facts, sighting.facts
        distance = sighting.offset - self.end
        if self.worker and sighting.worker and self.worker != sighting.worker:
            return False
        if distance > NEAR:
            return False
        if mine.device and other.device and mine.device != other.device:
            return False
        if pattern.weak or self.pattern.weak:
            return distance <= (NEAR if self.stage <= pattern.stage else CLOSE)
        if pattern.is_oom != self.is_oom:
            return False
        if not _agree(mine.requested_bytes, other.requested_bytes):
            return False
        if other.requested_bytes is None:
            return distance <= CLOSE or pattern.stage >= self.stage
        # An allocator that asks again, or after the exception was out, has failed again.
        return pattern.stage > 1 and pattern.stage >= self.stage

    def take(self, sighting: Sighting) -> None:
        """Take another account of this incident."""
        pattern, facts = sighting.pattern, sighting.facts
        self.told += 1
        self.end = max(self.end, sighting.offset)
        self.stage = max(self.stage, pattern.stage)
        self._note_size(sighting)
        if self.pattern.weak and pattern.weak and self.is_oom is None and pattern.is_oom:
            # "RESOURCE_EXHAUSTED: …: out of memory": the second half says what it was.
            self.facts.fill(facts)
            self.pattern = pattern
        elif self.pattern.weak and not pattern.weak:
            # How much a pool tried to grow by is not how much was asked of it.
            growth = ("requested_bytes",) if self.pattern.stage == 0 else ()
            better = facts.replace()
            better.fill(self.facts, but=growth)
            self.facts, self.pattern, self.text = better, pattern, sighting.text
        elif not pattern.weak:
            self.facts.fill(facts)

    def take_detail(self, found: Found) -> None:
        """Take a detail that stands near."""
        name, groups, facts = found.name, found.groups, self.facts
        if name in ("node", "op", "wrapped"):
            self._take_op(groups)
        elif name == "layer":
            layer = groups.get("layer") or groups.get("cls")
            facts.layer = facts.layer or (clean(layer, 120) if layer else None)
        elif name == "argument":
            shape, dtype = parse_shape(groups["shape"]), dtype_name(groups["dtype"])
            if shape and dtype and len(self.arguments) < 8:
                self.arguments.append((shape, dtype))
        elif name == "cgroup":
            facts.in_use_bytes = parse_bytes(groups["in_use"], binary=True)
            facts.limit_bytes = parse_bytes(groups["limit"], binary=True)
        else:
            self.program.add(name, groups, found.before)

    def _take_op(self, groups: dict[str, str]) -> None:
        op = plain_op(groups.get("op") or groups.get("name"))
        if op is None or self.facts.op not in (None, op):
            return
        self.facts.op = clean(op)
        if "op_kind" in groups:
            self.facts.op_kind = self.facts.op_kind or groups["op_kind"]
            attributes = groups.get("attributes", "")
            placed = _PLACED.search(attributes)
            if placed is not None:
                groups = {**groups, "device": placed.group(1)}
            for layout in ("NHWC", "NCHW", "NDHWC", "NCDHW"):
                if f'data_format="{layout}"' in attributes:
                    self.facts.data_format = layout
        device, where = device_of_path(groups.get("device"))
        if self.facts.device is None and device is not None:
            self.facts.device, self.facts.where = device, self.facts.where or where

    def told_facts(self) -> Facts:
        """The facts with those of the dump, and with the layer that the op belongs to."""
        facts = self.facts.replace()
        if self.dump is not None:
            facts.fill(self.dump.told())
        if not self.is_oom:
            facts.op = facts.shape = facts.dtype = None  # they asked for no memory
        facts.layer = facts.layer or layer_of_op(facts.op)
        return facts

    def _note_size(self, sighting: Sighting) -> None:
        size = sighting.facts.requested_bytes
        if sighting.pattern.stage == 0 and size and len(self.sizes) < 64:
            self.sizes.append(size)


def _agree(one: int | None, other: int | None) -> bool:
    """Whether two sizes can be the same, where one is rounded for people."""
    return one is None or other is None or abs(one - other) <= max(0.015 * one, 512)
