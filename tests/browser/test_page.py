"""The report page in a real browser: its numbers are those of the records, and it is harmless."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legroom.cli.report import write_page
from legroom.core.events import DidNotFit, Event, MemorySampled
from legroom.report.html.page import make_page, read_for_page
from legroom.report.reading import KeptRun, read_run
from legroom.report.run import RunReport

EVIL = "<img src=x onerror=alert(1)>"
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")


def estimate(layers: int = 3, ops: int = 40) -> dict[str, Any]:
    total = [10_000_000 + 1_000_000 * min(k, ops - k) for k in range(ops)]
    return {
        "model": EVIL, "method": "fit", "batch_size": 64, "peak_bytes": max(total),
        "low_bytes": 20_000_000, "high_bytes": 40_000_000, "first_step_bytes": 30_000_000,
        "source": "traced", "breakdown": dict.fromkeys(PARTS, 4_000_000),
        "layers": [[f"{EVIL}{k}", 5_000_000 * layers - k] for k in range(layers)],
        "timeline": [[f"model/{EVIL}/op{k}", size] for k, size in enumerate(total)],
        "parts": [[6_000_000, 0, 4_000_000, size - 10_000_000, 0, 0, 0] for size in total],
        "seconds": 0.1, "notes": [],
    }  # fmt: skip


def plan(made: dict[str, Any]) -> dict[str, Any]:
    way = {"name": EVIL, "peak_bytes": 19_000_000, "time_factor": 1.02, "fits": True,
           "exact": True, "reason": "", "slice_size": 16}  # fmt: skip
    other = {**way, "name": "as it is", "peak_bytes": 41_000_000, "reason": EVIL, "fits": False}
    return {"chosen": way, "alternatives": [other], "estimate": made, "batch_size": 64,
            "budget_bytes": 30_000_000, "next_better_bytes": 41_000_000}  # fmt: skip


def events(samples: int = 50, layers: int = 3, ops: int = 40, at: float = 1e9) -> list[Event]:
    def event(name: str, after: float, text: str = "", /, **data: Any) -> Event:
        made = {"kind": "Event", "version": 1, "name": name, "text": text, "at": at + after}
        return Event.from_dict({**made, "data": data})

    finding = {"kind": "Finding", "version": 1, "id": "LR109", "title": EVIL, "text": EVIL,
               "place": EVIL, "bytes": 123_456, "per": "iteration", "fix": EVIL}  # fmt: skip
    # Few different ones: a million of their own would take longer than all that is tested.
    seen = [{"device_bytes": 10_000_000 + k, "host_bytes": 60_000_000 + 3 * k, "steps": k,
             "peak_bytes": 25_000_000} for k in range(7)]  # fmt: skip
    memory = [MemorySampled("", at + 2 + k, **seen[k % 7]) for k in range(samples)]
    if samples > 20:  # one moment that stands out
        memory[samples // 3] = event(
            "memory", 2 + samples // 3, device_bytes=24_680_000, host_bytes=61_000_000,
            peak_bytes=25_000_000, steps=samples // 3,
        )  # fmt: skip
    return [
        event("run_started", 0, script=f"/tmp/{EVIL}.py", arguments=[]),
        event("training_started", 1, method="fit"),
        event("input", 1, stages=[{"kind": "shuffle", "element_bytes": 1000, "elements": 5000,
                                   "held_bytes": 0, "dtypes": [EVIL]}]),
        event("predicted", 1.5, plan=plan(estimate(layers, ops)), estimate=None),
        event("machine", 2, system=EVIL, cores=2, host_bytes=32_000_000_000, device="CPU:0",
              device_limit_bytes=30_000_000, gpus=[{"name": EVIL, "total_bytes": 1}],
              versions={"python": "3.11", EVIL: EVIL}, cgroup_limit_bytes=None),
        *memory[: samples // 2],
        event("oom", 2 + samples / 2, EVIL, place=EVIL, batch_size=64, slice_size=64, seconds=1.5),
        event("plan", 2 + samples / 2, subject="batch", batch_size=64, slice_size=16, slices=4,
              reason="oom", budget_bytes=30_000_000),
        event("measured", 3 + samples / 2, subject="batch", samples=64, slice_size=16,
              before_bytes=0, need_bytes=14_000_000, predicted_bytes=13_000_000),
        *memory[samples // 2 :],
        event("finding", samples + 3, finding=finding),
        event("progress", samples + 4, samples_seen=6400, samples_lost=0, peak_bytes=25_000_000,
              batch_size=64, budget_bytes=30_000_000),
    ]  # fmt: skip


def kept(tmp_path: Path, told: list[Event], name: str = "run") -> KeptRun:
    path = tmp_path / name / "report.json"
    path.parent.mkdir()
    path.write_text(RunReport.from_events(told).to_json())
    return read_run(path.parent)


def write(tmp_path: Path, *runs: KeptRun) -> Path:
    return write_page(runs, tmp_path / "page.html")


def test_its_numbers_are_those_of_the_record(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    told = events()
    run = kept(tmp_path, told)
    shown = open_page(write(tmp_path, run))
    figures = dict(
        zip(
            shown.values("dd[data-figure]", "data-figure"),
            shown.values("dd[data-figure]", "data-value"),
            strict=True,
        )
    )
    for name in ("ooms", "peak_bytes", "budget_bytes", "samples_seen", "slice_size", "batch_size"):
        assert int(figures[name]) == getattr(run.report, name), name
    samples = [event for event in told if event.name == "memory"]
    drawn = shown.series("memory")
    assert [at[1] for at in drawn["device"]] == [one.data["device_bytes"] for one in samples]
    assert [at[1] for at in drawn["process (main memory)"]] == [
        one.data["host_bytes"] for one in samples
    ]
    assert [at[0] for at in drawn["device"]] == [one.at - told[0].at for one in samples]
    assert {at[1] for at in drawn["limit"]} == {30_000_000}
    assert [mark["text"] for mark in drawn["out of memory"]] == [EVIL]
    assert drawn["slices a batch"][-1][1] == 4
    made = estimate()
    step = shown.series("step")
    assert [at[1] for at in step["all"]] == [size for _, size in made["timeline"]]
    assert [at[1] for at in step["activations"]] == [parts[3] for parts in made["parts"]]
    layers = shown.series("layers")["treemap"]
    assert [(one["name"], one["value"]) for one in layers] == [tuple(x) for x in made["layers"]]
    assert shown.values(".layers [data-bytes]") == [str(size) for _, size in made["layers"]]
    assert shown.values(".measured [data-bytes]") == ["13000000", "14000000"]
    assert shown.values(".planned [data-bytes]") == ["19000000", "25000000"]
    assert shown.values(".strategies [data-bytes]") == ["19000000", "41000000"]
    assert shown.values(".stages [data-bytes]") == ["1000", "5000000"]
    assert shown.page.inner_text("[data-figure=peak_bytes]") == "25.0 MB"
    for chart, said in (("memory", "device: 10.0 MB"), ("step", "in use ")):
        shown.page.hover(f"[data-chart={chart}] canvas")
        shown.page.wait_for_timeout(150)
        assert said in shown.page.inner_text(f"[data-chart={chart}]")
    assert shown.errors == []


def test_text_from_a_run_does_nothing_and_nothing_is_fetched(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    path = write(tmp_path, kept(tmp_path, events()))
    shown = open_page(path)
    shown.page.hover("[data-chart=layers] canvas")  # its tooltip has the layer's name
    shown.page.wait_for_timeout(200)
    assert EVIL in shown.page.inner_text("body")
    assert EVIL in shown.page.inner_text("[data-chart=layers]")
    assert shown.page.locator("img").count() == 0
    assert shown.dialogs == []
    assert shown.errors == []
    assert shown.requests == [path.as_uri()]


def test_what_slips_through_is_stopped_by_the_policy(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    """The second fence: markup that came in unescaped can't run anything, or fetch anything."""
    page = write(tmp_path, kept(tmp_path, events()))
    harm = '<script>alert(2)</script><img src="https://example.com/x" onerror="alert(3)">'
    page.write_text(page.read_text().replace("</footer>", harm + "</footer>"))
    shown = open_page(page)
    shown.page.wait_for_timeout(200)
    assert shown.dialogs == []
    assert any("Content Security Policy" in error for error in shown.errors)
    assert shown.page.evaluate("document.documentElement.dataset.drawn") == "yes"


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1200, 375])
def test_nothing_sticks_out(
    tmp_path: Path, open_page: Callable[..., Any], width: int, dark: bool
) -> None:
    shown = open_page(
        write(tmp_path, kept(tmp_path, events()), kept(tmp_path, events(at=2e9), "b")), width, dark
    )
    assert shown.page.evaluate("document.documentElement.scrollWidth") <= width
    clipped = shown.page.evaluate(
        """() => [...document.querySelectorAll("p, h1, h2, h3, dt, dd, summary")]
            .filter(one => one.scrollWidth > one.clientWidth + 1 && one.clientWidth)
            .map(one => one.textContent)"""
    )
    assert clipped == []
    sizes = shown.page.evaluate(
        """() => [...document.querySelectorAll("[data-chart] canvas")]
            .map(one => [one.clientWidth, one.clientHeight])"""
    )
    assert len(sizes) == 7  # three for each run, and one for both
    assert all(300 < w <= width and h >= 280 for w, h in sizes)
    background = shown.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(21, 24, 28)") is dark


def test_why_it_does_not_fit_is_told(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    words = f"It does not fit.\n  1.00 GB  {EVIL}\nWhat to change:\n  - {EVIL}"
    told = [*events(), DidNotFit(at=2e9, data_text=words)]
    shown = open_page(write(tmp_path, kept(tmp_path, told)))
    assert shown.page.inner_text(".misfit") == words
    assert "ended because it does not fit" in shown.page.inner_text(".badge")
    assert shown.dialogs == []


def test_two_runs_stand_side_by_side(tmp_path: Path, open_page: Callable[..., Any]) -> None:
    one, other = kept(tmp_path, events(50)), kept(tmp_path, events(30, at=2e9), "b")
    shown = open_page(write(tmp_path, one, other))
    assert shown.values("[data-row=peak_bytes] [data-value]", "data-value") == ["25000000"] * 2
    both = shown.series("comparison")
    assert [len(drawn) for drawn in both.values()] == [50, 30]
    assert len(shown.series("memory", 1)["device"]) == 30


def test_a_long_run_of_a_deep_model_opens_at_once(
    tmp_path: Path, open_page: Callable[..., Any]
) -> None:
    told = events(samples=1_000_000, layers=2000, ops=20_000)
    report = RunReport.from_events(told)
    path = tmp_path / "long.html"
    path.write_text(make_page([read_for_page(KeptRun("long", path, report))]))
    assert path.stat().st_size < 5_000_000
    seconds = []
    for _ in range(3):  # the machine may be busy with something else
        shown = open_page(path)
        seconds.append(
            shown.page.evaluate(
                "performance.timing.loadEventEnd - performance.timing.navigationStart"
            )
            / 1000
        )
    assert min(seconds) < 2, seconds
    drawn = shown.series("memory")
    assert len(drawn["device"]) < 6000
    # The one moment that stood out is there, and the event too.
    assert max(at[1] for at in drawn["device"]) == 24_680_000
    assert len(drawn["out of memory"]) == 1
    step = shown.series("step")
    assert max(at[1] for at in step["all"]) == estimate(1, 20_000)["peak_bytes"]
    assert len(shown.series("layers")["treemap"]) == 2000
    assert shown.errors == []


def test_the_records_are_json_in_the_page(tmp_path: Path) -> None:
    page = write(tmp_path, kept(tmp_path, events())).read_text()
    data = page.split('<script type="application/json" id="data">')[1].split("</script>")[0]
    assert "<" not in data
    assert json.loads(data)["runs"][0]["layers"][0][0] == f"{EVIL}0"
