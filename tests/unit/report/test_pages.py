"""The pages on findings and errors, as `legroom explain` shows them."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import pytest
from click.testing import CliRunner

import legroom
from legroom.cli.main import _legroom
from legroom.core import errors
from legroom.doctor.catalog import TITLES
from legroom.messages.patterns import PATTERNS
from legroom.report.pages import page_names, page_text


def explained(*arguments: str) -> str:
    done = CliRunner().invoke(_legroom, ["explain", *arguments], env={"COLUMNS": "80"})
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", page_names())
def test_every_page_can_be_shown(name: str) -> None:
    said = explained(name)
    assert "What to do." in said or "What it means." in said
    assert max(map(len, said.splitlines())) <= 80
    assert ".md" not in said  # links are commands here
    for linked in re.findall(r"legroom explain ([\w-]+)\.md", page_text(name) or ""):
        assert linked in page_names()


def test_whatever_a_message_names_has_a_page() -> None:
    named = {*TITLES, *(pattern.finding for pattern in PATTERNS if pattern.finding)}
    kinds = [one for one in vars(errors).values() if isinstance(one, type)]
    named |= {kind.page for kind in kinds if issubclass(kind, errors.LegroomError)} - {""}
    assert named - set(page_names()) == set()
    public = {name for name in dir(legroom) if name.endswith("Error")} - {"LegroomError"}
    assert {getattr(legroom, name).page for name in public} == public


def test_the_case_does_not_matter_and_a_file_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "tensors kept" in explained("lr105")
    monkeypatch.chdir(tmp_path)
    Path("killed").write_text("MemoryError\n")
    assert "What it means." in explained("KILLED")
    assert "More: legroom explain python-memory-error" in explained("killed")


def test_an_error_leads_to_its_page() -> None:
    error = legroom.CannotFitError("It is too large.")
    assert str(error) == "It is too large."
    shown = traceback.format_exception(error)
    if hasattr(BaseException, "add_note"):
        assert shown[-1] == "More: legroom explain CannotFitError\n"
