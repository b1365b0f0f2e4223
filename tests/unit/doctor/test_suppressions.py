"""Findings that are not wanted."""

from __future__ import annotations

from pathlib import Path

import pytest

from legroom.core.findings import Finding, ranked
from legroom.doctor.catalog import TITLES, finding
from legroom.doctor.suppressions import read_ids, wanted
from legroom.report.pages import page_text

DOCS = Path(__file__).parents[3] / "docs"


def test_ids_are_read_as_people_write_them() -> None:
    assert read_ids(["lr101, LR109", "LR201"]) == ("LR101", "LR109", "LR201")
    with pytest.raises(ValueError, match=r"There is no finding 'LR999'\. Expected one of LR101"):
        read_ids(["LR999"])


def test_a_comment_at_the_line_suppresses(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("a\nb  # legroom: ignore[LR105, LR109]\nc  # legroom: ignore\n")
    seen = [finding("LR105", "", place=f"{script}:{line}") for line in (1, 2, 3)]
    seen.append(finding("LR101", "", place=f"{script}:2"))
    seen.append(finding("LR101", "", place="model", data={"loop": f"{script}:3"}))
    assert wanted(seen) == [seen[0], seen[3]]
    assert wanted(seen, ["LR101"]) == [seen[0]]


def test_findings_are_ranked_and_go_to_json_and_back() -> None:
    small, large = finding("LR202", "", bytes=1), finding("LR203", "", bytes=9)
    note = finding("LR109", "", bytes=99, severity="note")
    assert ranked([note, small, large]) == [large, small, note]
    assert Finding.from_json(large.to_json()) == large


def test_every_kind_has_its_page() -> None:
    for name, title in TITLES.items():
        page = page_text(name) or ""
        assert page.startswith(f"# {name}: {title}\n"), name
        assert "**What to do.**" in page, name
    listed = (DOCS / "doctor.md").read_text()
    for name in TITLES:
        assert f"findings/{name}.md" in listed, name
