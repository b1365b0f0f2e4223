"""Answers of before, kept on disk."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from legroom.prediction import kept
from legroom.prediction.estimate import Estimate
from legroom.prediction.kept import kept_answer


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "answers"))
    return tmp_path / "answers"


class Maker:
    """Counts how often an answer had to be found."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Estimate:
        self.times += 1
        return Estimate("m", "fit", 8, 100, 90, 110, 95, "traced", {"weights": self.times})


def ask(make: Maker, question: dict[str, Any] | None, **options: bool) -> Estimate:
    return kept_answer(Estimate, question, make, **options)[0]


def test_a_question_is_answered_once(folder: Path) -> None:
    make = Maker()
    first, when = kept_answer(Estimate, {"batch": 8}, make)
    assert when is None
    second, when = kept_answer(Estimate, {"batch": 8}, make)
    assert (make.times, second) == (1, first)
    assert when is not None


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setenv("TF_NUM_INTEROP_THREADS", "1"),
        lambda patch: patch.setattr(kept, "installed", lambda packages: {"keras": "99"}),
        lambda patch: patch.setattr(kept, "_own_state", lambda: "edited"),
    ],
    ids=["settings", "versions", "edited"],
)
def test_other_conditions_are_another_question(
    folder: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    make = Maker()
    ask(make, {"batch": 8})
    change(monkeypatch)
    ask(make, {"batch": 8})
    assert make.times == 2


def test_other_questions_are_not_mixed_up(folder: Path) -> None:
    make = Maker()
    assert ask(make, {"batch": 8}) != ask(make, {"batch": 9})


def test_nothing_is_kept_of_what_cannot_be_written_down(folder: Path) -> None:
    make = Maker()
    ask(make, None)
    ask(make, None)
    assert make.times == 2
    assert not folder.exists()


def test_again_makes_a_new_answer_and_keeps_that_one(folder: Path) -> None:
    make = Maker()
    ask(make, {"batch": 8})
    newer = ask(make, {"batch": 8}, again=True)
    assert newer.breakdown == {"weights": 2}
    assert ask(make, {"batch": 8}) == newer


def test_a_damaged_answer_is_none(folder: Path) -> None:
    make = Maker()
    ask(make, {"batch": 8})
    (file,) = folder.glob("*.json")
    file.write_text(file.read_text()[:40])
    ask(make, {"batch": 8})
    assert make.times == 2


def test_a_folder_that_cannot_be_written_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LEGROOM_CACHE", str(tmp_path / "file" / "answers"))
    assert ask(Maker(), {"batch": 8}).batch_size == 8


def test_the_oldest_go(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_MOST_ANSWERS", 3)
    make = Maker()
    for batch in range(5):
        ask(make, {"batch": batch})
        newest = max(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
        os.utime(newest, (batch, batch))
    ask(make, {"batch": 4})
    assert make.times == 5
    assert len(list(folder.glob("*.json"))) == 3
    ask(make, {"batch": 0})
    assert make.times == 6
