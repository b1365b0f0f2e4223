"""The page: one HTML file with all it needs in it, made from the records of one run or of two.

Everything that comes from a run is data. In the markup Jinja escapes it; what the charts draw is
embedded as JSON that can't end its element; and a policy in the page lets run only the two scripts
whose hashes it names and lets nothing be fetched, whatever a layer is called.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from legroom.core.errors import LegroomError
from legroom.core.events import DidNotFit
from legroom.core.findings import Finding, ranked
from legroom.core.stages import Stage
from legroom.core.units import format_bytes, format_factor, format_seconds, units_family
from legroom.report.course import Course, read_course
from legroom.report.foreseen import PARTS, Foreseen, read_foreseen
from legroom.report.reading import KeptRun
from legroom.report.story import Figure, figures, format_count, outcome, story

__all__ = ["RunOnPage", "make_page", "read_for_page"]

_WEB = Path(__file__).with_name("web")
_MOST_ROWS = 200  # of a table; the charts and the record hold the rest
_LAYER_ROWS = 30


@dataclasses.dataclass(frozen=True)
class RunOnPage:
    """A run, read for the page."""

    name: str
    source: str
    started: float
    mood: str
    ended: str
    story: list[str]
    figures: list[Figure]
    course: Course
    foreseen: Foreseen
    slice_size: int | None = None
    peak: int | None = None
    misfit: str = ""

    @property
    def planned_peak(self) -> int | None:
        """What the plan had predicted at most, where the run was run by that plan in the end."""
        plan = self.foreseen.plan
        if plan is None or self.peak is None:
            return None
        planned = plan["chosen"]["slice_size"] or plan["batch_size"]
        found: int | None = plan["chosen"]["peak_bytes"]
        return found if planned == self.slice_size else None

    @property
    def layers(self) -> list[tuple[str, int]]:
        """The layers by what they hold at the peak, the largest first."""
        listed = (self.foreseen.estimate or {}).get("layers") or []
        return [(str(name), int(size)) for name, size in listed]

    def chart_data(self) -> dict[str, Any]:
        """What the charts draw."""
        course, step = self.course, self.foreseen.step
        return {
            "name": self.name,
            "seconds": course.seconds,
            "device": course.device,
            "host": course.host,
            "limit": course.limit,
            "slices": course.slices,
            "duration": course.duration,
            "happenings": [(one.seconds, one.name, one.text) for one in course.happenings],
            "step": {"ops": step.ops, "layers": step.layers, "total": step.total,
                     "parts": step.parts, "names": PARTS},
            "budget": self.budget,
            "layers": self.layers,
        }  # fmt: skip

    @property
    def budget(self) -> int | None:
        """The limit in force at the end."""
        return self.course.limit[-1][1] if self.course.limit else None


def read_for_page(
    run: KeptRun, check_stages: Callable[[list[Stage]], Iterable[Finding]] | None = None
) -> RunOnPage:
    """Read what the page shows of a run.

    Args:
        run: The run.
        check_stages: What the doctor finds in the input's stages, beside what the events tell.

    Raises:
        LegroomError: If the record holds what can't be understood.
    """
    events = run.report.events
    try:
        course, foreseen = read_course(events), read_foreseen(events)
        known = {found.id for found in foreseen.findings}
        stages = list(foreseen.stages)
        checked = check_stages(stages) if check_stages is not None and stages else ()
        more = [found for found in checked if found.id not in known]
        foreseen = dataclasses.replace(
            foreseen, findings=tuple(ranked([*foreseen.findings, *more]))
        )
        mood, ended = outcome(run.report)
        return RunOnPage(
            name=run.name,
            source=str(run.source),
            started=events[0].at if events else 0.0,
            mood=mood,
            ended=ended,
            story=story(run.report, course, foreseen, run.name),
            figures=figures(run.report, course),
            course=course,
            foreseen=foreseen,
            slice_size=run.report.slice_size,
            peak=run.report.peak_bytes,
            misfit=next((event.data_text for event in events if isinstance(event, DidNotFit)), ""),
        )
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise LegroomError(
            f"{run.source} holds an event that this version of legroom can't read "
            f"({type(error).__name__}: {error}). Was it written by a newer one?"
        ) from error


def make_page(runs: Sequence[RunOnPage]) -> str:
    """The page of one run, or of two that are compared."""
    scripts = [_script("echarts.min.js"), _script("page.js")]
    hashes = " ".join(f"'sha256-{_hash(script)}'" for script in scripts)
    policy = (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    from markupsafe import Markup  # ours, and not from a run

    page: str = _template().render(
        runs=runs,
        compared=_compared(runs),
        title=" and ".join(run.name for run in runs),
        policy=policy,
        style=Markup(_text("page.css")),
        scripts=[Markup(script) for script in scripts],
        data=Markup(_json({"runs": [run.chart_data() for run in runs]})),
        most_rows=_MOST_ROWS,
        layer_rows=_LAYER_ROWS,
    )
    return page


def _compared(runs: Sequence[RunOnPage]) -> list[tuple[Figure, Figure, str]]:
    if len(runs) != 2:
        return []
    return [
        (one, other, _difference(one, other))
        for one, other in zip(runs[0].figures, runs[1].figures, strict=True)
    ]


def _difference(one: Figure, other: Figure) -> str:
    if one.value is None or other.value is None:
        return ""
    if one.value == other.value:
        return "same"
    if not one.value:
        return ""
    return f"{other.value / one.value - 1:+.0%}"


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["bytes"] = lambda size: "unknown" if size is None else format_bytes(size)
    environment.globals["units"] = units_family
    environment.filters["factor"] = format_factor
    environment.filters["seconds"] = format_seconds
    environment.filters["count"] = format_count
    environment.filters["moment"] = lambda at: time.strftime("%Y-%m-%d %H:%M", time.localtime(at))
    return environment.from_string(_text("page.html"))


def _text(name: str) -> str:
    return (_WEB / name).read_text(encoding="utf-8")


@functools.cache
def _script(name: str) -> str:
    text = _text(name)
    assert "</script" not in text.lower()  # it would end the element it is put in
    return text


def _hash(script: str) -> str:
    # As a browser hashes it: line ends are made plain when a page is read.
    plain = script.replace("\r\n", "\n").replace("\r", "\n")
    return base64.b64encode(hashlib.sha256(plain.encode()).digest()).decode()


def _json(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end it, or begin another."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
