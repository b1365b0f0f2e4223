"""Records as a notebook shows them: small, escaped, without scripts, the same figures."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from legroom import Diagnosis, Estimate, Finding, Plan, RunReport
from legroom.core.events import RanOut
from legroom.core.findings import Findings, ranked
from legroom.messages.diagnosis import Remedy
from legroom.planning import Strategy

EVIL = "<img src=x onerror=alert(1)>"
ESTIMATE = Estimate(
    model=EVIL, method="fit", batch_size=64, peak_bytes=800_000_000, low_bytes=700_000_000,
    high_bytes=900_000_000, first_step_bytes=850_000_000, source="traced",
    breakdown={"weights": 200_000_000, "activations": 600_000_000},
    layers=((EVIL, 500_000_000),), notes=(EVIL,),
)  # fmt: skip
FINDING = Finding("LR109", EVIL, EVIL, place=EVIL, bytes=123_000, per="iteration", fix=EVIL)
SHOWN = {
    "estimate": (ESTIMATE, ["800 MB", "700 MB to 900 MB", "75%"]),
    "plan": (
        Plan(EVIL, "f", "0", 64, 600_000_000,
             Strategy(EVIL, 500_000_000, 1.02, True, slice_size=16),
             (Strategy("as it is", 900_000_000, 1.0, False, reason=EVIL),), ESTIMATE, 900_000_000,
             (EVIL,)),
        ["600 MB", "up to 500 MB", "about 2 % slower", "up to 900 MB", "fits with 900 MB"],
    ),
    "run": (
        RunReport((RanOut(EVIL),), ooms=1, batch_size=64, slice_size=16,
                  peak_bytes=500_000_000, budget_bytes=600_000_000, samples_seen=640,
                  oom_seconds=3.0),
        ["once, 3.0 s", "64, as 4 slices of up to 16", "500 MB of 600 MB", "640 seen, 0 lost"],
    ),
    "diagnosis": (
        Diagnosis(is_oom=True, fatal=True, device=EVIL, story=EVIL,
                  remedies=(Remedy(EVIL, command=EVIL),)),
        ["Out of memory", "&lt;img"],
    ),
    "finding": (FINDING, ["LR109", "123 kB each iteration"]),
    "findings": (ranked([FINDING, FINDING]), ["legroom: 2 findings", "123 kB each iteration"]),
    "no findings": (Findings(), ["nothing found"]),
}  # fmt: skip
HARMLESS = {"div", "p", "b", "i", "br", "table", "tr", "td", "ul", "ol", "li", "code"}


class Tags(HTMLParser):
    """The tags and attributes of a piece of HTML, and which are open."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("name", SHOWN)
def test_it_is_small_harmless_and_has_the_figures(name: str) -> None:
    record, figures = SHOWN[name]
    html = record._repr_html_()
    tags = Tags(html)
    assert tags.names <= HARMLESS
    assert tags.attributes <= {"style", "class"}
    assert tags.open == []
    assert len(html) < 5000
    for figure in figures:
        assert figure in html, figure


@pytest.mark.parametrize("name", SHOWN)
def test_a_notebook_gets_text_and_html(name: str) -> None:
    record, _ = SHOWN[name]
    bundle = record._repr_mimebundle_()
    assert set(bundle) == {"text/plain", "text/html"}
    assert bundle["text/html"] == record._repr_html_()
    assert max(map(len, bundle["text/plain"].splitlines())) <= 80
    assert "\x1b" not in bundle["text/plain"]
    assert set(record._repr_mimebundle_(include=["text/html"])) == {"text/html"}
    assert set(record._repr_mimebundle_(exclude=["text/html"])) == {"text/plain"}


def test_many_lines_are_cut() -> None:
    report = RunReport(tuple(RanOut(f"line {k}") for k in range(500)))
    assert "and 492 more" in report._repr_html_()  # type: ignore[operator]


def test_findings_stay_a_list() -> None:
    found: Any = ranked([FINDING])
    assert found == [FINDING]
    assert isinstance(found, list)


def test_in_a_notebook_nothing_is_shown_beside_what_is_returned(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """rich shows things by itself where it thinks that it is in a notebook."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setattr("rich.jupyter.display", lambda *_: pytest.fail("shown by rich"))
    assert "LR109" in FINDING._repr_mimebundle_()["text/plain"]
    assert capsys.readouterr().out == ""
