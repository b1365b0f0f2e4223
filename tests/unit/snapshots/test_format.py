"""A file that is damaged in any way is told from one that is not."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from legroom.core.errors import SnapshotError
from legroom.snapshots import format as snapshot_format
from legroom.snapshots.format import read_file, write_file

ARRAYS = [np.arange(1000, dtype="float32").reshape(10, 100), np.array(7, "int64"),
          np.zeros((0, 3)), np.ones(5, bool), np.arange(12).reshape(3, 4).T]  # fmt: skip
VALUES = {"epoch": 3, "name": "ä", "nested": [{"a": None}]}


@pytest.fixture
def written(tmp_path: Path) -> Path:
    path = tmp_path / "one.snapshot"
    assert write_file(path, VALUES, ARRAYS) == path.stat().st_size
    return path


def same(content) -> bool:
    return content.values == VALUES and all(
        a.shape == b.shape and a.dtype == b.dtype and np.array_equal(a, b)
        for a, b in zip(content.arrays, ARRAYS, strict=True)
    )


def test_it_comes_back_as_it_was_and_leaves_nothing_else(written: Path) -> None:
    assert same(read_file(written))
    assert list(written.parent.iterdir()) == [written]


def test_small_floats_come_back(tmp_path: Path) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    write_file(tmp_path / "a", {}, [array])
    back = read_file(tmp_path / "a").arrays[0]
    assert back.dtype == array.dtype
    assert np.array_equal(back, array)


def test_every_flipped_bit_is_noticed_or_is_of_no_matter(written: Path) -> None:
    whole = written.read_bytes()
    rng = random.Random(0)
    places = [*range(200), *(rng.randrange(len(whole)) for _ in range(600))]
    noticed = 0
    for place in places:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << rng.randrange(8)
        written.write_bytes(damaged)
        try:
            content = read_file(written)
        except SnapshotError:
            noticed += 1
        else:
            assert same(content)  # a byte between two arrays
    assert noticed > 0.9 * len(places)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(data=st.data())
def test_a_file_that_is_cut_short_is_noticed(written: Path, data) -> None:
    whole = written.read_bytes()
    end = len(whole) - len(ARRAYS[-1].tobytes()) - 1  # before the padding of the last array
    cut = data.draw(st.integers(0, end))
    path = written.with_name("cut")
    path.write_bytes(whole[:cut])
    with pytest.raises(SnapshotError):
        read_file(path)


@given(junk=st.binary(max_size=300))
def test_anything_else_is_no_snapshot(tmp_path_factory, junk: bytes) -> None:
    path = tmp_path_factory.mktemp("junk") / "x"
    for start in (b"", b"legroom snapshot\n", b"legroom snapshot\n\1\0\0\0"):
        path.write_bytes(start + junk)
        with pytest.raises(SnapshotError):
            read_file(path)


def test_another_format_is_named(written: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_format, "FORMAT", 2)
    with pytest.raises(SnapshotError, match=r"format 1.*another version.*--fresh"):
        read_file(written)


def test_no_file_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="can't be read"):
        read_file(tmp_path / "none")
