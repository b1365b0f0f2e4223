"""Words that users read: no phrases that only their author understands."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "legroom"
# What is for contributors, not for users.
INTERNAL = {"backends/parts.py"}
UNPLAIN = re.compile(
    r"\b(?:anew|go(?:es|ing)? on|gone on|(?:is|are) said|held back|all the same|by itself|"
    r"what (?:it|they) takes?|not known so well|from its making|remat|passed over|ways?)\b"
)
LONGEST = 700  # characters in one message


def sentences() -> Iterator[tuple[str, str]]:
    """Every text of four words or more that is no docstring, and where it is."""
    for path in sorted(SOURCE.rglob("*.py")):
        name = str(path.relative_to(SOURCE))
        tree = ast.parse(path.read_text())
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef))
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if id(node) not in docstrings and len(text.split()) > 3 and name not in INTERNAL:
                    yield f"{name}:{node.lineno}", text


def pages() -> Iterator[tuple[str, str]]:
    """Every line of the documentation, the report page and the help of the commands."""
    written = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    shown = [*SOURCE.rglob("*.md"), *SOURCE.rglob("*.html")]
    for path in [*written, *shown]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            yield f"{path.relative_to(ROOT)}:{number}", line
    for path in (SOURCE / "cli").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield f"{path.name}:{node.name}", ast.get_docstring(node) or ""


def test_pages_are_plain() -> None:
    found = list(pages())
    assert len(found) > 2000, "the pages are no longer found"
    assert not {place: UNPLAIN.findall(text) for place, text in found if UNPLAIN.search(text)}


def test_messages_are_plain_and_short() -> None:
    found = list(sentences())
    assert len(found) > 300, "the messages are no longer found"
    unplain = {place: UNPLAIN.findall(text) for place, text in found if UNPLAIN.search(text)}
    assert not unplain
    assert not {place: len(text) for place, text in found if len(text) > LONGEST}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("the training goes on", False),
        ("a faster way fits from 28.7 GB on", False),
        ("the training resumes with the next batch", True),
        ("always", True),
    ],
)
def test_the_list_finds_what_it_should(text: str, plain: bool) -> None:
    assert (UNPLAIN.search(text) is None) is plain
