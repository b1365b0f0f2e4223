"""What legroom takes from inside of Keras and TensorFlow is in the registry, and is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import legroom
from legroom import backends
from legroom.backends import parts, patches
from legroom.backends.parts import NEEDED, PARTS, Part
from legroom.backends.patches import missing

BACKENDS = Path(backends.__file__).parent
INSIDE = ("keras.src.", "tensorflow.python.", "tensorflow.compiler.")
LOSS = "keras.src.losses.loss:Loss"


def taken() -> dict[str, str]:
    """What modules of the backends import from inside as they are imported themselves."""
    found = {}
    for path in BACKENDS.rglob("*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(INSIDE):
                for alias in node.names:
                    found[f"{node.module}.{alias.name}"] = path.name
    return found


def test_the_table_has_all_that_is_imported() -> None:
    paths = {path for part in PARTS for path in part.paths}
    assert len(taken()) > 30
    for name, module in taken().items():
        assert any(f"{path}.".startswith(f"{name}.") for path in paths), f"{name} in {module}"


def test_the_table_has_all_private_names() -> None:
    """Names with an underscore that are asked of something else than legroom's own objects."""
    own, asked = {"_fields", "_replace"}, {}  # those of every named tuple
    for path in Path(legroom.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = None
            if isinstance(node, ast.FunctionDef):
                own.add(node.name)
            elif isinstance(node, ast.Attribute):
                of_self = getattr(node.value, "id", "") in ("self", "os", "sys")
                own.update([node.attr] if of_self else [])
                name = None if of_self else node.attr
            elif getattr(getattr(node, "func", None), "id", "") in ("getattr", "hasattr"):
                name = getattr(node.args[1], "value", None)
            if isinstance(name, str) and re.match("_[^_]", name):
                asked[name] = path.name
    known = {name for part in PARTS for name in [*part.names, *part.knows]}
    assert len(set(asked) & known) > 30
    assert {name: path for name, path in asked.items() if name not in known | own} == {}


@pytest.mark.parametrize("purpose", sorted({part.purpose for part in PARTS}))
def test_these_versions_have_everything(purpose: str) -> None:
    assert missing(purpose) is None


@pytest.mark.parametrize(
    ("part", "lack"),
    [
        (Part("guard", NEEDED, "keras.src.nowhere:Thing", (), ""), "nowhere.Thing"),
        (Part("guard", NEEDED, LOSS, ("nothing",), ""), "losses.loss.Loss.nothing"),
        (Part("guard", NEEDED, LOSS, ("__call__",), "", takes=("y_true", "z")),
         "losses.loss.Loss.__call__(y_true, z)"),
        (Part("guard", NEEDED, LOSS, ("__init__",), "", knows=("reduction", "reductions")),
         "losses.loss.Loss.__init__ with reductions"),
        (Part("guard", NEEDED, LOSS, ("__init__",), "", takes=("name",), knows=("reduction",)),
         None),
        (Part("guard", NEEDED, LOSS, ("call", "nothing"), ""), "losses.loss.Loss.nothing"),
        (Part("guard", NEEDED, LOSS, ("no_*",), ""), None),
        (Part("guard", NEEDED, "tensorflow.python.nowhere", ("thing",), ""),
         "tensorflow.python.nowhere.thing"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named(part: Part, lack: str | None) -> None:
    assert part.lacks() == lack


def test_the_framework_and_its_version_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras
    import tensorflow as tf

    lacking = [
        Part("keras", NEEDED, LOSS, ("nothing",), ""),
        Part("tensorflow", NEEDED, "tensorflow", ("nothing",), ""),
        Part("by the way", NEEDED, LOSS, ("nothing",), "", optional=True),
        Part("long ago", NEEDED, LOSS, ("nothing",), "", until="3.4"),
        Part("one day", NEEDED, LOSS, ("nothing",), "", since="4.0"),
    ]
    monkeypatch.setattr(patches, "PARTS", lacking)
    assert missing("keras") == f"this Keras ({keras.__version__}) has no losses.loss.Loss.nothing"
    told = missing("tensorflow")
    assert told == f"this TensorFlow ({tf.__version__}) has no tensorflow.nothing"
    assert [missing(purpose) for purpose in ("by the way", "long ago", "one day")] == [None] * 3


@pytest.mark.parametrize(
    ("version", "known"), [("3.5.0", False), ("3.7.0", True), ("3.10.1", True), ("4.0.0rc1", False)]
)
def test_a_part_is_known_in_some_versions(version: str, known: bool) -> None:
    part = Part("guard", NEEDED, LOSS, ("call",), "", since="3.7", until="3.10")
    assert part.known_in(version) is known


def test_known_versions_are_those_that_are_tested() -> None:
    rows = (Path(__file__).parent / "pairs.txt").read_text().splitlines()
    pairs = [row.split()[1:] for row in rows if row and not row.startswith("#")]
    for package, column in (("tensorflow", 0), ("keras", 1)):
        versions = [pair[column].rpartition(".")[0] for pair in pairs]
        assert parts.KNOWN[package] == (versions[0], versions[-1])
