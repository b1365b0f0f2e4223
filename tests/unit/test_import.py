"""``import legroom``: quick, without a framework, and with the names it promises."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import pytest

import legroom

HEAVY = ("keras", "tensorflow", "numpy", "jax", "torch", "rich", "click", "psutil", "pynvml")


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_imports_nothing_heavy() -> None:
    code = f"import legroom, sys; print([name for name in {HEAVY} if name in sys.modules])"
    assert python(code) == "[]\n"


def test_importing_is_quick() -> None:
    code = "import time; t = time.process_time(); import legroom; print(time.process_time() - t)"
    assert min(float(python(code)) for _ in range(5)) < 0.1


def test_errors_and_reports_need_no_framework() -> None:
    code = (
        "import legroom, sys\n"
        "legroom.CannotFitError, legroom.RunReport, legroom.__version__\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert python(code) == "[]\n"


def test_every_public_name_is_there() -> None:
    for name in legroom.__all__:
        assert getattr(legroom, name) is not None
    assert set(legroom.__all__) <= set(dir(legroom))


def test_no_package_has_the_name_of_a_public_function() -> None:
    """Python binds a package to its name when it is first imported: the function would be gone."""
    packages = {package.name for package in pkgutil.iter_modules(legroom.__path__)}
    assert packages
    assert not packages & set(legroom.__all__)


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'legroom' has no attribute 'fitt'"):
        legroom.fitt  # noqa: B018


@pytest.mark.parametrize(("old", "new"), legroom._RENAMED.items())
def test_old_names_stay_for_one_release(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"legroom.{old} is legroom.{new} now"):
        assert getattr(legroom, old) is getattr(legroom, new)
    assert old not in legroom.__all__
