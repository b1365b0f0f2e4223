"""What was foreseen in a run, and what was measured: read from its events, as plain records."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from legroom.core.events import Event
from legroom.core.findings import Finding, ranked
from legroom.core.series import thinned
from legroom.core.stages import Stage
from legroom.messages.ops import layer_of_op

__all__ = ["PARTS", "Foreseen", "Measured", "StepLine", "read_foreseen"]

# What the bytes of a step are for, in the order in which an estimate lists them.
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")
_MOST_OPS = 1500


@dataclasses.dataclass(frozen=True)
class Measured:
    """A step that was measured.

    Attributes:
        subject: What it was a step on: "batch", "evaluation batch", "prediction batch".
        slice_size: Its size in samples.
        need_bytes: The most it took beyond what was in use before it.
        predicted_bytes: What had been predicted for that; None where nothing was.
    """

    subject: str
    slice_size: int
    need_bytes: int
    predicted_bytes: int | None

    @property
    def error(self) -> float | None:
        """How far the prediction was off, as a share of what was measured."""
        if self.predicted_bytes is None or not self.need_bytes:
            return None
        return self.predicted_bytes / self.need_bytes - 1


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
        measured: The steps that were measured, by size.
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
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def ways(self) -> list[dict[str, Any]]:
        """The ways that were thought of, the chosen one first."""
        if self.plan is None:
            return []
        return [self.plan["chosen"], *self.plan["passed_over"]]


def read_foreseen(events: Sequence[Event]) -> Foreseen:
    """Read what the events tell of predictions, input, findings and machine."""
    estimate: dict[str, Any] | None = None
    plan: dict[str, Any] | None = None
    unpredicted = ""
    measured: dict[tuple[str, int], Measured] = {}
    stages: list[Stage] = []
    findings: dict[tuple[str, str], Finding] = {}
    machine: dict[str, Any] = {}
    for event in events:
        data = event.data
        if event.name == "predicted" and estimate is None:
            plan = data.get("plan")
            estimate = data.get("estimate") or (plan or {}).get("estimate")
        elif event.name == "unpredicted":
            unpredicted = str(data.get("reason", ""))
        elif event.name == "measured" and data.get("need_bytes") is not None:
            one = Measured(
                str(data.get("subject", "batch")),
                int(data.get("slice_size") or 0),
                int(data["need_bytes"]),
                data.get("predicted_bytes"),
            )
            before = measured.get((one.subject, one.slice_size))
            if before is None or one.need_bytes > before.need_bytes:
                measured[one.subject, one.slice_size] = one
        elif event.name == "input" and not stages:
            stages = [
                Stage(**{**stage, "dtypes": tuple(stage.get("dtypes", ()))})
                for stage in data.get("stages", ())
            ]
        elif event.name == "finding":
            found = Finding.from_dict(data["finding"])
            findings[found.id, found.place] = found
        elif event.name == "machine":
            machine = data
    return Foreseen(
        estimate=estimate,
        plan=plan,
        unpredicted=unpredicted,
        step=_step_line(estimate),
        measured=tuple(measured.values()),
        stages=tuple(stages),
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
