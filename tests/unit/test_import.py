"""``import legroom``: quick, without a framework, and with the names it promises."""

from __future__ import annotations

import subprocess
import sys

import pytest

import legroom

HEAVY = ("keras", "tensorflow", "numpy", "jax", "torch", "rich", "typer", "psutil", "pynvml")


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
        "legroom.CannotFit, legroom.RunReport, legroom.__version__\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert python(code) == "[]\n"


def test_every_public_name_is_there() -> None:
    for name in legroom.__all__:
        assert getattr(legroom, name) is not None
    assert set(legroom.__all__) <= set(dir(legroom))


@pytest.mark.parametrize(
    "first",
    ["import legroom.guard", "import legroom.guard.api as api", "from legroom import fit", ""],
)
def test_guard_can_be_called_although_a_package_has_its_name(first: str) -> None:
    """Whoever imported what before: a bad call fails as a call of the function would."""
    code = (
        f"{first}\n"
        "import inspect, legroom\n"
        "from legroom.guard import guard as function\n"
        "assert inspect.signature(legroom.guard) == inspect.signature(function)\n"
        "try:\n"
        "    legroom.guard(nonsense=1)\n"
        "except TypeError as error:\n"
        "    print(error)\n"
    )
    assert python(code) == "guard() got an unexpected keyword argument 'nonsense'\n"


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'legroom' has no attribute 'fitt'"):
        legroom.fitt  # noqa: B018
