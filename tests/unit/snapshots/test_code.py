from __future__ import annotations

from pathlib import Path

import pytest

from legroom.snapshots.code import code_of

ONE = "import os\n\ndef f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("# a remark\nimport os\ndef f(x): return (x +\n  1)  # more\n", True),
        ("import os\n\ndef f(x):\n    return x + 2\n", False),
        (ONE + "print(1)\n", False),
    ],
)
def test_an_edit_is_one_of_code_and_not_of_looks(tmp_path: Path, text: str, same: bool) -> None:
    (tmp_path / "a.py").write_text(ONE)
    (tmp_path / "b.py").write_text(text)
    assert (code_of(tmp_path / "a.py") == code_of(tmp_path / "b.py")) is same


def test_what_does_not_parse_has_no_fingerprint(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def")
    assert code_of(tmp_path / "a.py") == code_of(tmp_path / "none.py") == ""
