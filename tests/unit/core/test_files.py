from __future__ import annotations

from pathlib import Path

import pytest

from legroom.core.files import write_atomically


def test_writes_and_replaces(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"old")
    with pytest.raises(TypeError):
        write_atomically(target, "text is not bytes")  # type: ignore[arg-type]
    assert target.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "no" / "such" / "folder", b"")
