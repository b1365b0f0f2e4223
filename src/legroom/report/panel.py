"""The live panel: memory over time against its limit, what is in force, and what happened."""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from typing import Any

from legroom.core.events import Event
from legroom.core.units import format_bytes, format_seconds
from legroom.report.curve import curve
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
        self._latest: dict[str, Any] = {}
        self._started: float | None = None
        self._epoch: _Epoch | None = None

    def __call__(self, event: Event) -> None:
        """Take an event in."""
        data = event.data
        if self._started is None:
            self._started = event.at
        if event.name == "memory":
            if data.get("device_bytes") is not None:
                self._device.append((event.at, float(data["device_bytes"])))
            self._host.append(float(data.get("host_bytes") or 0))
            self._counts.append((event.at, data.get("steps") or 0, data.get("samples") or 0))
        elif event.name == "plan" and data.get("subject", "batch") == "batch":
            self._latest.update(batch=data["batch_size"], size=data["slice_size"])
        elif event.name == "oom":
            self._latest["ooms"] = self._latest.get("ooms", 0) + 1
        elif event.name == "epoch":
            self._begin_epoch(data)
        elif event.name == "restart":
            self._counts.clear()
            self._epoch = None
        for key in ("budget_bytes", "peak_bytes", "batch_size"):
            if data.get(key) is not None:
                before = self._latest.get(key, 0) if key != "budget_bytes" else 0
                self._latest[key] = max(before, data[key])
        if event.text:
            since = format_seconds(event.at - self._started)
            self._said.append(f"{since:>10}  {event.text}")

    def _begin_epoch(self, data: dict[str, Any]) -> None:
        number, before, last = int(data["epoch"]), int(data.get("steps_done") or 0), self._epoch
        steps = data.get("steps")
        if steps is None and last is not None and number == last.number + 1:
            steps = before - last.before  # Keras did not know, but now it was counted
        epochs = int(data.get("epochs") or number + 1)
        self._epoch = _Epoch(number, epochs, steps or None, before)

    def panel(self, now: float) -> LivePanel:
        """The panel as it is now."""
        values = [size for _, size in self._device] or list(self._host)
        device = bool(self._device)
        facts = [line for line in (self._memory(device), self._plan(), self._pace(now)) if line]
        limit = self._latest.get("budget_bytes") if device else None
        return LivePanel(self._title, values, limit, facts, list(self._said))

    def _memory(self, device: bool) -> str:
        if not self._host:
            return "waiting for the first step"
        peak, limit = self._latest.get("peak_bytes"), self._latest.get("budget_bytes")
        parts = []
        if device and peak is not None:
            of = f" of {format_bytes(limit)}" if limit else ""
            parts.append(
                f"device {format_bytes(self._device[-1][1])}, peak {format_bytes(peak)}{of}"
            )
        parts.append(f"process {format_bytes(self._host[-1])}")
        return " | ".join(parts)

    def _plan(self) -> str:
        batch = self._latest.get("batch") or self._latest.get("batch_size")
        size, ooms = self._latest.get("size"), self._latest.get("ooms", 0)
        parts = []
        if batch is not None:
            whole = size is None or size >= batch
            how = "whole" if whole else f"as {-(-batch // (size or 1))} slices of {size}"
            parts.append(f"batch {batch} {how}")
        if ooms:
            parts.append(f"ran out {'once' if ooms == 1 else f'{ooms} times'}")
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
