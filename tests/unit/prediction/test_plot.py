"""An estimate as a figure: its areas and lines are the estimate's numbers."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from legroom.prediction.estimate import Estimate

ESTIMATE = Estimate(
    model="<net>", method="fit", batch_size=8, peak_bytes=30_000_000, low_bytes=25_000_000,
    high_bytes=40_000_000, first_step_bytes=30_000_000, source="traced", breakdown={},
    timeline=(("a", 10_000_000), ("b", 30_000_000), ("c", 12_000_000)),
    parts=((10_000_000, 0, 0, 0, 0, 0, 0), (10_000_000, 0, 0, 20_000_000, 0, 0, 0),
           (10_000_000, 0, 0, 2_000_000, 0, 0, 0)),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has a folder of its own, see pyproject.toml; what is installed beside it comes first."""
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path(sys.prefix) / "plot")])


def test_what_is_drawn_is_what_was_estimated(tmp_path: Path) -> None:
    figure = ESTIMATE.plot(budget_bytes=20_000_000)
    (axes,) = figure.axes
    labels = axes.get_legend_handles_labels()[1]
    assert labels == ["weights", "activations", "predicted peak", "limit"]
    highest = [area.get_paths()[0].vertices[:, 1].max() for area in axes.collections[:2]]
    assert highest == [10, 30]
    assert [line.get_ydata()[0] for line in axes.lines] == [30, 20]
    assert "MB" in axes.get_ylabel()
    figure.savefig(tmp_path / "step.pdf")
    assert (tmp_path / "step.pdf").stat().st_size > 1000


def test_without_parts_the_whole_is_drawn() -> None:
    (axes,) = dataclasses.replace(ESTIMATE, parts=()).plot().axes
    assert list(axes.lines[0].get_ydata()) == [10, 30, 12]


def test_without_matplotlib_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(Exception, match="pip install matplotlib"):
        ESTIMATE.plot()
