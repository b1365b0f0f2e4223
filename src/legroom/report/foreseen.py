"""What was foreseen in a run, and what was measured: read from its events, as plain records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.core.events import (
    Event,
    Found,
    InputRead,
    MachineDescribed,
    Measured,
    NotPredicted,
    Predicted,
)
from legroom.core.findings import Finding, ranked
from legroom.core.series import thinned
from legroom.core.stages import Stage
from legroom.messages.reading.ops import layer_of_op

__all__ = ["PARTS", "Foreseen", "StepLine", "read_foreseen"]

# What the bytes of a step are for, in the order in which an estimate lists them.
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")
_MOST_OPS = 1500


@dataclasses.dataclass(frozen=True)
class StepLine:
    """The memory of one step as it was predicted.

    Attributes:
        ops: The ops, in order.
        layers: The layer of each, empty where it belongs to none.
        total: The bytes in use at each.
        parts: The same by what they are for, in the order of :data:`PARTS`.
    """

    ops: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    total: tuple[int, ...] = ()
    parts: tuple[tuple[int, ...], ...] = ()


@dataclasses.dataclass(frozen=True)
class Foreseen:
    """All that a run's events tell beside its course.

    Attributes:
        estimate: The estimate of the whole batch's step, as an ``Estimate`` writes itself.
        plan: The plan, as a ``Plan`` writes itself.
        unpredicted: Why there is none.
        step: The memory along the step.
        measured: The steps that were measured: of each size the one that took the most.
        stages: The stages of the input.
        findings: What the doctor saw.
        machine: The machine and the versions.
    """

    estimate: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    unpredicted: str = ""
    step: StepLine = StepLine()
    measured: tuple[Measured, ...] = ()
    stages: tuple[Stage, ...] = ()
    findings: tuple[Finding, ...] = ()
    machine: MachineDescribed | None = None

    @property
    def strategies(self) -> list[dict[str, Any]]:
        """The strategies of the plan, the chosen one first."""
        if self.plan is None:
            return []
        return [self.plan["chosen"], *self.plan["alternatives"]]


def read_foreseen(events: Sequence[Event]) -> Foreseen:
    """Read what the events tell of predictions, input, findings and machine."""
    estimate: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    unpredicted = ""
    measured: dict[tuple[str, int], Measured] = {}
    stages: tuple[Stage, ...] = ()
    findings: dict[tuple[str, str], Finding] = {}
    machine: MachineDescribed | None = None
    for event in events:
        match event:
            case Predicted() if estimate is None:
                plan = event.plan
                estimate = event.estimate or (plan or {}).get("estimate")
            case NotPredicted():
                unpredicted = event.reason
            case Measured(need_bytes=int(need)):
                before = measured.get((event.subject, event.slice_size))
                if before is None or need > (before.need_bytes or 0):
                    measured[event.subject, event.slice_size] = event
            case InputRead() if not stages:
                stages = event.stages
            case Found():
                findings[event.finding.id, event.finding.place] = event.finding
            case MachineDescribed():
                machine = event
    return Foreseen(
        estimate=estimate,
        plan=plan,
        unpredicted=unpredicted,
        step=_step_line(estimate),
        measured=tuple(measured.values()),
        stages=stages,
        findings=tuple(ranked(findings.values())),
        machine=machine,
    )


def _step_line(estimate: dict[str, Any] | None) -> StepLine:
    if estimate is None:
        return StepLine()
    line, parts = estimate.get("timeline") or [], estimate.get("parts") or []
    total = [int(size) for _, size in line]
    shown = thinned([total], _MOST_OPS)
    ops = [str(line[place][0]) for place in shown]
    return StepLine(
        ops=tuple(ops),
        layers=tuple(layer_of_op(op) or "" for op in ops),
        total=tuple(total[place] for place in shown),
        parts=tuple(tuple(parts[place]) for place in shown) if len(parts) == len(line) else (),
    )
