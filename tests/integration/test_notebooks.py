"""The notebooks in examples/: run by a real kernel, as they are, on a machine without a GPU."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "examples/notebooks"
# What a reader has to see in the outputs of each.
SHOWN = {
    "first_aid": [
        "ResourceExhaustedError",
        "batch 64, height 32",
        "<code>%load_ext legroom</code>",
        "slices of",
    ],
    "image_competition": [
        "slices of 32",
        "mix the samples of a batch",
        "accuracy on new pictures: ",
    ],
    "leak": ["LR105", "cell In[3], line 6", "nothing found", "256 units: freed "],
}


def outputs(book: nbformat.NotebookNode) -> str:
    """All that the cells printed and showed, as text."""
    found = []
    for cell in book.cells:
        for output in cell.get("outputs", ()):
            shown = output.get("data", {})
            found.append(
                output.get("text") or shown.get("text/html") or shown.get("text/plain", "")
            )
    return "\n".join(found)


def test_every_notebook_is_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(SHOWN)
    for path in FOLDER.glob("*.ipynb"):
        book = nbformat.read(path, as_version=4)
        assert not outputs(book), f"{path.name}: committed with its outputs"


@pytest.mark.parametrize("name", SHOWN)
def test_notebook_runs(name: str, tmp_path: Path) -> None:
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    said = outputs(book)
    assert not [text for text in SHOWN[name] if text not in said], said
