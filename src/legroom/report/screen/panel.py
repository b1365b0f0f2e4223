"""The live panel: memory over time against its limit, what is in force, and what happened."""

from __future__ import annotations

import dataclasses
import math
from collections import deque

from legroom.core.events import (
    EpochStarted,
    Event,
    MemorySampled,
    OfBatch,
    Planned,
    RanOut,
    Restarted,
    WithBudget,
    WithPeak,
)
from legroom.core.units import format_bytes, format_seconds
from legroom.report.screen.curve import curve
from legroom.report.text import clean_line

__all__ = ["LivePanel", "RunState", "panel_lines"]

_WIDEST = 79
_NARROWEST = 30
_LABEL = 9
_MOST_POINTS = 2000
_LAST_EVENTS = 3
_RATE_OVER = 20  # samples of memory


@dataclasses.dataclass
class LivePanel:
    """What the panel shows.

    Attributes:
        title: On its upper edge.
        values: The memory over time.
        limit: What it may reach.
        facts: Lines of facts below the curve.
        said: What happened last, newest at the end.
    """

    title: str
    values: list[float]
    limit: float | None
    facts: list[str]
    said: list[str]


def panel_lines(panel: LivePanel, columns: int, rows: int, *, plain: bool = False) -> list[str]:
    """Draw the panel in a terminal of a size: plain lines, each shorter than the terminal is wide.

    Args:
        panel: What to draw.
        columns: The terminal's width.
        rows: The terminal's height; some of it is left to the script.
        plain: Use ASCII only.
    """
    width = min(_WIDEST, columns - 1)
    if width < _NARROWEST or rows < 6:
        return [clean_line(fact)[: max(0, columns - 1)] for fact in panel.facts[:1]]
    edge = "-" if plain else "─"
    lines = [f"{edge * 2} {clean_line(panel.title)} "[:width].ljust(width, edge)]
    words = [*panel.facts, *panel.said]
    height = min(8, rows * 3 // 5 - len(words) - 2)
    if height >= 3 and panel.values:
        top = _top(panel)
        limit = panel.limit if panel.limit is not None and panel.limit <= top else None
        drawn = curve(panel.values, width - _LABEL, height, top=top, limit=limit, plain=plain)
        labels = {height - 1: 0.0}
        # The limit has a line, and its size stands at it.
        labels[0 if limit is None else height - 1 - int(limit * height / top)] = limit or top
        for row, text in enumerate(drawn):
            label = format_bytes(labels[row]) if row in labels else ""
            lines.append(f"{label:>{_LABEL - 1}} {text}".rstrip())
    lines += [_cut(clean_line(word), width, plain) for word in words]
    return lines


def _cut(text: str, width: int, plain: bool) -> str:
    if len(text) <= width:
        return text
    return text[: width - 3] + "..." if plain else text[: width - 1] + "…"


def _top(panel: LivePanel) -> float:
    """The height of the curve's highest row: above the limit, unless that is far away."""
    highest = max(panel.values, default=0.0)
    if panel.limit is not None and panel.limit < 3 * highest:
        return max(highest, panel.limit) * 1.1
    if highest < 1:  # no byte at all
        return 1.0
    unit = 10 ** math.floor(math.log10(highest)) / 2
    return float(math.ceil(highest * 1.05 / unit) * unit)


@dataclasses.dataclass(frozen=True)
class _Epoch:
    """An epoch that runs: its number, how many there are, its steps, and those done before it."""

    number: int
    epochs: int
    steps: int | None
    before: int

    def steps_left(self, done: int) -> int | None:
        """How many steps are left until the last epoch's end, if that is known."""
        if self.steps is None:
            return None
        return max(0, (self.epochs - self.number) * self.steps - (done - self.before))


class RunState:
    """A run as far as its events have told; a listener that makes the panel."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._device: deque[tuple[float, float]] = deque(maxlen=_MOST_POINTS)
        self._host: deque[float] = deque(maxlen=_MOST_POINTS)
        self._counts: deque[tuple[float, int, int]] = deque(maxlen=_RATE_OVER)
        self._said: deque[str] = deque(maxlen=_LAST_EVENTS)
        self._planned: Planned | None = None
        self._batch: int | None = None
        self._budget: int | None = None
        self._peak: int | None = None
        self._ooms = 0
        self._started: float | None = None
        self._epoch: _Epoch | None = None

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        if self._started is None:
            self._started = event.at
        match event:
            case MemorySampled():
                if event.device_bytes is not None:
                    self._device.append((event.at, float(event.device_bytes)))
                self._host.append(float(event.host_bytes or 0))
                self._counts.append((event.at, event.steps, event.samples))
            case Planned(of_training=True):
                self._planned = event
            case RanOut():
                self._ooms += 1
            case EpochStarted():
                self._begin_epoch(event)
            case Restarted():
                self._counts.clear()
                self._epoch = None
        if isinstance(event, WithBudget) and event.budget_bytes is not None:
            self._budget = event.budget_bytes
        if isinstance(event, WithPeak) and event.peak_bytes is not None:
            self._peak = max(self._peak or 0, event.peak_bytes)
        if isinstance(event, OfBatch) and event.batch_size is not None:
            self._batch = max(self._batch or 0, event.batch_size)
        if event.text:
            since = format_seconds(event.at - self._started)
            self._said.append(f"{since:>10}  {event.text}")

    def _begin_epoch(self, began: EpochStarted) -> None:
        number, before, steps, last = began.epoch, began.steps_done, began.steps, self._epoch
        if steps is None and last is not None and number == last.number + 1:
            steps = before - last.before  # Keras did not know, but now it was counted
        self._epoch = _Epoch(number, began.epochs or number + 1, steps or None, before)

    def panel(self, now: float) -> LivePanel:
        """The panel as it is now."""
        values = [size for _, size in self._device] or list(self._host)
        device = bool(self._device)
        facts = [line for line in (self._memory(device), self._plan(), self._pace(now)) if line]
        limit = self._budget if device else None
        return LivePanel(self._title, values, limit, facts, list(self._said))

    def _memory(self, device: bool) -> str:
        if not self._host:
            return "waiting for the first step"
        parts = []
        if device and self._peak is not None:
            of = f" of {format_bytes(self._budget)}" if self._budget else ""
            in_use, peak = format_bytes(self._device[-1][1]), format_bytes(self._peak)
            parts.append(f"device {in_use}, peak {peak}{of}")
        parts.append(f"process {format_bytes(self._host[-1])}")
        return " | ".join(parts)

    def _plan(self) -> str:
        planned, parts = self._planned, []
        if planned is not None and planned.slices > 1:
            size = planned.slice_size
            parts.append(f"batch {planned.batch_size} as {planned.slices} slices of {size}")
        elif batch := self._batch if planned is None else planned.batch_size:
            parts.append(f"batch {batch} whole")
        if self._ooms:
            times = "once" if self._ooms == 1 else f"{self._ooms} times"
            parts.append(f"ran out {times}")
        return " | ".join(parts)

    def _pace(self, now: float) -> str:
        parts = []
        if len(self._counts) > 1:
            (began, steps, samples), (at, steps_now, samples_now) = (
                self._counts[0],
                self._counts[-1],
            )
            if at > began and steps_now > steps:
                pace = (steps_now - steps) / (at - began)
                parts.append(f"{pace:.3g} steps/s")
                parts.append(f"{(samples_now - samples) / (at - began):.3g} samples/s")
                left = None if self._epoch is None else self._epoch.steps_left(steps_now)
                if left is not None:
                    parts.append(f"{format_seconds(left / pace)} left")
        if self._started is not None:
            parts.append(f"{format_seconds(max(0.0, now - self._started))} so far")
        return " | ".join(parts)
