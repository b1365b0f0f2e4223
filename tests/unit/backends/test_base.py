"""Which backend there is: as Keras says, or as it will say, and without importing a framework."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from legroom.backends import base


def asked(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\nfrom legroom.backends import base\n{code}"],
        capture_output=True, text=True, env={"PATH": "", "HOME": "/nowhere", **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_nothing_is_imported_by_asking() -> None:
    code = (
        "print(base.current().name, base.running(), base.imported())\n"
        "base.current().caps.capped_bytes()\n"
        "print([name for name in ('tensorflow', 'keras', 'numpy') if name in sys.modules])"
    )
    assert asked(code) == "tensorflow None []\n[]"


def test_the_variable_and_the_file_of_keras_are_asked(tmp_path: Path) -> None:
    (tmp_path / "keras.json").write_text(json.dumps({"backend": "torch"}))
    name = "print(base.used_name())"
    assert asked(name, KERAS_HOME=str(tmp_path)) == "torch"
    assert asked(name, KERAS_HOME=str(tmp_path), KERAS_BACKEND="jax") == "jax"
    (tmp_path / "keras.json").write_text("{")
    assert asked(name, KERAS_HOME=str(tmp_path)) == "tensorflow"


def test_one_that_is_not_known_is_named() -> None:
    code = (
        "import legroom\n"
        "try:\n"
        "    base.current()\n"
        "except legroom.UnsupportedModelError as error:\n"
        "    print(error)\n"
        "print(base.running(), base.named('tensorflow').name)"
    )
    said = asked(code, KERAS_BACKEND="openvino")
    assert "here Keras runs on 'openvino'" in said
    assert said.endswith("None tensorflow")


def test_a_cap_in_the_environment_does_not_keep_legroom_from_being_imported() -> None:
    code = (
        "import warnings\n"
        "with warnings.catch_warnings(record=True) as said:\n"
        "    warnings.simplefilter('always')\n"
        "    import legroom\n"
        "print(said[0].message if said else None)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True,
        env={"PATH": "", "HOME": "/nowhere", "KERAS_BACKEND": "openvino", "LEGROOM_MEMORY": "1GiB"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(
        "LEGROOM_MEMORY has no effect. legroom guards Keras on TensorFlow"
    )


def test_keras_itself_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    import keras

    monkeypatch.setenv("KERAS_BACKEND", "something else")
    assert keras.backend.backend() == "tensorflow"
    backend = base.current()
    assert backend is base.running()
    assert backend.name == "tensorflow"


@pytest.mark.parametrize("part", [name for name in dir(base.Backend) if not name.startswith("_")])
def test_every_part_is_there(part: str) -> None:
    """Whether it has the right functions is for the types to say, which mypy compares."""
    found = getattr(base.current(), part)
    wanted = getattr(base, getattr(base.Backend, part).fget.__annotations__["return"], None)
    if wanted is not None:
        names = {name for name in vars(wanted) if not name.startswith("_")}
        assert names
        assert names <= set(dir(found))


def test_a_loop_in_plain_pytorch_needs_no_keras() -> None:
    code = "import types; sys.modules['torch'] = types.ModuleType('torch'); print(base.used_name())"
    assert asked(code) == "torch"
    assert asked(code, KERAS_BACKEND="tensorflow") == "tensorflow"
