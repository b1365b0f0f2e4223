"""The live panel: what it shows, and that it fits."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from legroom.core.events import Event
from legroom.report.screen.curve import curve, squeezed
from legroom.report.screen.panel import LivePanel, RunState, panel_lines


def state(*told: tuple[str, float, dict[str, Any]]) -> str:
    run = RunState("legroom run train.py")
    for name, at, data in told:
        text = data.pop("text", "")
        made = {"kind": "Event", "version": 1, "name": name, "text": text, "at": at}
        run(Event.from_dict({**made, "data": data}))
    return "\n".join(panel_lines(run.panel(now=100.0), 80, 24))


def memory(at: float, steps: int, size: float = 50e6) -> tuple[str, float, dict[str, Any]]:
    return "memory", at, {"device_bytes": size, "host_bytes": 2e8, "peak_bytes": 60_000_000,
                          "steps": steps, "samples": 32 * steps}  # fmt: skip


def test_what_is_in_force_is_shown() -> None:
    shown = state(
        ("plan", 0, {"batch_size": 32, "slice_size": 10, "slices": 4, "budget_bytes": 80_000_000}),
        ("oom", 1, {"text": "out of memory at conv"}),
        ("epoch", 2, {"epoch": 0, "epochs": 3, "steps": 100, "steps_done": 0}),
        memory(10, 10), memory(20, 30),
    )  # fmt: skip
    assert "device 50.0 MB, peak 60.0 MB of 80.0 MB | process 200 MB" in shown
    assert "batch 32 as 4 slices of 10 | ran out once\n" in shown
    assert "2 steps/s | 64 samples/s | 2 min 15 s left | 1 min 40 s so far" in shown
    assert "1.0 s out of memory at conv" in shown


def test_an_epoch_that_was_counted_tells_the_time_left() -> None:
    unknown = {"epochs": 2, "steps": None}
    first = ("epoch", 0.0, {"epoch": 0, "steps_done": 0, **unknown})
    assert "left" not in state(first, memory(1, 1), memory(2, 2))
    second = ("epoch", 3.0, {"epoch": 1, "steps_done": 60, **unknown})
    shown = state(first, memory(1, 0), second, memory(31, 60))
    assert "2 steps/s | 64 samples/s | 30 s left" in shown


def test_before_the_first_step() -> None:
    assert "waiting for the first step" in state(("run_started", 0, {}))


@example(values=[5e-324], limit=None, columns=80, rows=24, plain=False)
@given(
    values=st.lists(st.floats(0, 1e12), max_size=300),
    limit=st.one_of(st.none(), st.floats(1, 1e12)),
    columns=st.integers(1, 200),
    rows=st.integers(1, 60),
    plain=st.booleans(),
)
def test_it_fits_into_any_terminal(
    values: list[float], limit: float | None, columns: int, rows: int, plain: bool
) -> None:
    panel = LivePanel("a title \x1b[31m", values, limit, ["fact " * 40, "other"], ["said\n" * 30])
    lines = panel_lines(panel, columns, rows, plain=plain)
    assert all(len(line) < columns for line in lines)
    assert len(lines) <= max(6, rows)
    assert not any("\x1b" in line or "\n" in line for line in lines)
    if plain:
        assert all(line.isascii() for line in lines)


def test_a_curve_is_as_high_as_its_values() -> None:
    assert curve([0, 4, 8], 3, 1, top=8) == [" ▄█"]
    assert curve([16], 2, 2, top=16, limit=8) == ["█─", "█ "]
    assert curve([], 3, 2, top=1) == ["   ", "   "]


@pytest.mark.parametrize("width", [1, 3, 7, 10])
def test_no_peak_is_lost_when_it_is_squeezed(width: int) -> None:
    for place in range(23):
        values = [0.0] * 23
        values[place] = 1.0
        shown = squeezed(values, width)
        assert len(shown) == width
        assert sum(shown) == 1.0
