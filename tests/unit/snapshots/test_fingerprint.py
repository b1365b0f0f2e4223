from __future__ import annotations

import numpy as np
import pytest

from legroom.snapshots import fingerprint
from legroom.snapshots.fingerprint import data_fingerprint, differences


def test_any_changed_value_of_an_array_is_seen() -> None:
    one = np.arange(1000, dtype="float32").reshape(100, 10)
    other = one.copy()
    assert data_fingerprint(one) == data_fingerprint(other)
    other[57, 3] += 1
    assert data_fingerprint(one) != data_fingerprint(other)
    assert data_fingerprint(one) != data_fingerprint(one.astype("float64"))
    assert data_fingerprint(one) != data_fingerprint(one.reshape(10, 100))
    assert data_fingerprint(one.T) != data_fingerprint(other.T)
    assert data_fingerprint({"a": one, "b": [other]}) != data_fingerprint({"a": one, "b": [one]})


def test_of_a_very_large_array_parts_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fingerprint, "_READ", 2**12)
    monkeypatch.setattr(fingerprint, "_BLOCK", 2**6)
    one = np.arange(100_000)
    other = one.copy()
    other[-1] = 0
    assert data_fingerprint(one) == data_fingerprint(one.copy())
    assert data_fingerprint(one) != data_fingerprint(other)
    assert data_fingerprint(one) != data_fingerprint(one + 1)


def test_text_and_lists_have_fingerprints() -> None:
    assert data_fingerprint(np.array(["a", "b"])) != data_fingerprint(np.array(["a", "c"]))
    assert data_fingerprint([1.0, 2.0]) != data_fingerprint([1.0, 3.0])
    assert data_fingerprint(np.array([{}, None], object)) == data_fingerprint(
        np.array([{}, None], object)
    )


def test_differences_are_told() -> None:
    kept = {"epochs": "3", "x": "a" * 80, "y": "one"}
    now = {"epochs": "5", "x": "b" * 80, "z": "new"}
    assert differences(kept, now) == [
        "epochs was 3 and is 5", "x changed", "y changed", "z changed",
    ]  # fmt: skip
    assert differences(kept, dict(kept)) == []
