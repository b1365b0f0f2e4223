"""The fixtures' folder, and how a diagnosis is compared with what is expected of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legroom.messages import Diagnosis

OOM = Path(__file__).parents[2] / "fixtures" / "oom"


@pytest.fixture(scope="session")
def oom() -> Path:
    return OOM


@pytest.fixture(scope="session")
def differences() -> Callable[[Diagnosis, dict[str, Any]], dict[str, tuple[Any, Any]]]:
    """Fields that are not as expected; sizes printed for people are rounded, so 1 % is accepted."""

    def compare(diagnosis: Diagnosis, expected: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        got = diagnosis.to_dict()
        wrong = {}
        for name, wanted in expected.items():
            value = got[name]
            close = (
                isinstance(wanted, int) and isinstance(value, int)
                and not isinstance(wanted, bool) and not isinstance(value, bool)
                and abs(value - wanted) <= 0.01 * wanted
            )  # fmt: skip
            if value != wanted and not close:
                wrong[name] = (wanted, value)
        return wrong

    return compare
