"""What legroom takes from inside of Keras stands in the table of parts, and this Keras has it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from legroom import backends
from legroom.backends.keras.parts import PARTS, Part, missing

BACKENDS = Path(backends.__file__).parent
INSIDE = "keras.src."


def taken() -> dict[str, str]:
    """What modules of the backends import from inside of Keras as they are imported themselves."""
    found = {}
    for path in BACKENDS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(INSIDE):
                for alias in node.names:
                    found[f"{node.module}.{alias.name}".removeprefix(INSIDE)] = path.name
    return found


def test_the_table_has_all_that_is_imported() -> None:
    parts = {f"{part.module}.{part.name}" for group in PARTS.values() for part in group}
    assert len(taken()) > 10
    for name, module in taken().items():
        assert any(f"{part}.".startswith(f"{name}.") for part in parts), f"{name} in {module}"


@pytest.mark.parametrize("purpose", PARTS)
def test_this_keras_has_everything(purpose: str) -> None:
    assert missing(purpose) is None


@pytest.mark.parametrize(
    ("part", "lack"),
    [
        (Part("nowhere", "Thing"), "nowhere.Thing"),
        (Part("losses.loss", "Loss.nothing"), "losses.loss.Loss.nothing"),
        (Part("losses.loss", "Loss.__call__", takes=("y_true", "z")),
         "losses.loss.Loss.__call__(y_true, z)"),
        (Part("losses.loss", "Loss.__init__", knows=("reduction", "reductions")),
         "losses.loss.Loss.__init__ with reductions"),
        (Part("losses.loss", "Loss.__init__", takes=("name",), knows=("reduction",)), None),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(part: Part, lack: str | None) -> None:
    assert part.lacks() == lack
