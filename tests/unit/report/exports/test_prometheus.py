"""A run's figures in Prometheus's text format."""

from __future__ import annotations

import re

from legroom.core.events import MemorySampled, Planned, RanOut, Restarted
from legroom.report.exports.prometheus import RunMetrics

LINE = re.compile(r"legroom_[a-z_]+ -?[0-9.e+]+")


def values(metrics: RunMetrics) -> dict[str, float]:
    lines = metrics.text().splitlines()
    assert all(line.startswith(("# HELP ", "# TYPE ")) or LINE.fullmatch(line) for line in lines)
    return {
        name.removeprefix("legroom_"): float(value)
        for name, value in (line.split() for line in lines if not line.startswith("#"))
    }


def test_what_is_not_known_is_left_out() -> None:
    assert values(RunMetrics()) == {
        "out_of_memory_total": 0, "restarts_total": 0, "snapshots_total": 0,
    }  # fmt: skip


def test_figures_and_counters_over_a_restart() -> None:
    metrics = RunMetrics()
    for event in (
        MemorySampled(device_bytes=12_345_678_901, peak_bytes=20_000_000_000, host_bytes=7,
                      steps=5, samples=50),
        RanOut(batch_size=64, slice_size=64),
        Planned(batch_size=64, slice_size=16, slices=4, budget_bytes=3),
        Restarted(),
        MemorySampled(device_bytes=1, peak_bytes=2, steps=3, samples=30),
    ):  # fmt: skip
        metrics(event)
    assert values(metrics) == {
        "device_bytes": 1, "device_peak_bytes": 20_000_000_000, "process_bytes": 7,
        "budget_bytes": 3, "steps_total": 8, "samples_total": 80, "batch_size": 64,
        "slice_size": 16, "out_of_memory_total": 1, "restarts_total": 1, "snapshots_total": 0,
    }  # fmt: skip
