"""What the input costs: the rules, by table; measured against the real thing elsewhere."""

from __future__ import annotations

import numpy as np
import pytest

from legroom.core.stages import Stage
from legroom.doctor.check import check
from legroom.doctor.pipelines import check_arrays, check_stages

KB, MB = 1000, 1_000_000
PREFETCH = Stage("prefetch", MB, 2, dtypes=("float32",))


def ids(stages: list[Stage]) -> dict[str, int]:
    return {finding.id: finding.bytes for finding in check_stages(stages)}


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([Stage("arrays", KB, 0, held_bytes=100 * MB)], {"LR201": 200 * MB}),
        (
            [Stage("arrays", KB, 0, held_bytes=1000 * MB)],
            {"LR201": 2000 * MB, "LR212": 1000 * MB},
        ),
        (
            [Stage("arrays", KB), Stage("shuffle", 100 * KB, 1000)],
            {"LR202": 100 * MB, "LR211": 99 * MB},
        ),
        ([Stage("arrays", 100 * KB), Stage("shuffle", 100 * KB, 1000)], {"LR202": 100 * MB}),
        ([Stage("files", KB), Stage("cache", 40 * KB, 1000)], {"LR203": 40 * MB}),
        ([Stage("files", KB), Stage("cache", 40 * KB, 1000, to_file=True)], {}),
        ([Stage("files", KB), Stage("prefetch", MB, 100)], {"LR204": 100 * MB}),
        ([Stage("files", KB), Stage("map", MB, 64)], {"LR205": 64 * MB}),
        ([Stage("files", KB), Stage("interleave", MB, 48)], {"LR205": 48 * MB}),
        ([Stage("files", KB), Stage("batch", 32 * KB), Stage("batch", MB)], {"LR206": 3 * MB}),
        ([Stage("files", KB), Stage("batch", KB), Stage("unbatch", KB), Stage("batch", KB)], {}),
        ([Stage("map", KB, random=True), Stage("cache", KB, 5)], {"LR207": 5 * KB}),
        ([Stage("cache", KB, 5), Stage("map", KB, random=True)], {}),
        (
            [Stage("files", KB, dtypes=("uint8",)), Stage("map", 4 * KB, dtypes=("float32",)),
             Stage("shuffle", 4 * KB, 10_000, dtypes=("float32",))],
            {"LR202": 40 * MB, "LR209": 31_500_000},
        ),
    ],
)  # fmt: skip
def test_rules(stages: list[Stage], expected: dict[str, int]) -> None:
    assert ids([*stages, PREFETCH]) == expected


def test_float64_at_the_end() -> None:
    (seen,) = check_stages([Stage("files", KB), Stage("prefetch", MB, 10, dtypes=("float64",))])
    assert (seen.id, seen.bytes) == ("LR208", 5 * MB)


def test_without_prefetch_it_is_a_note() -> None:
    (seen,) = check_stages([Stage("files", KB)])
    assert (seen.id, seen.severity) == ("LR210", "note")


def test_arrays() -> None:
    rng = np.random.default_rng(0)
    seen = {f.id: f.bytes for f in check_arrays((rng.random((3000, 1000)), np.ones(3000)))}
    assert seen == {"LR201": 2 * (24 * MB + 24 * KB), "LR208": 12 * MB}
    pixels = rng.integers(0, 256, (100, 100, 100, 10)).astype("float32")
    assert {f.id: f.bytes for f in check({"x": pixels})} == {"LR201": 80 * MB, "LR209": 30 * MB}
    one_hot = np.eye(4000, dtype="float32")
    assert [f.id for f in check([one_hot])] == ["LR201"]
    assert check((np.ones((10, 10)),)) == []
    assert [f.id for f in check(one_hot, ignore="lr201")] == []


def test_a_gigabyte_could_be_streamed() -> None:
    whole = np.zeros((1000, 1_000_001), np.uint8)  # whose pages are never touched
    seen = {f.id: f for f in check((whole,))}
    assert set(seen) == {"LR201", "LR212"}
    assert seen["LR212"].bytes == whole.nbytes
    assert "legroom.stream" in seen["LR212"].fix
    assert "LR212" not in {f.id for f in check((whole[:999],))}


def test_what_it_can_not_look_at() -> None:
    with pytest.raises(TypeError, match="Received: int"):
        check(3)


def test_a_batch_size_is_for_arrays():
    arrays = np.zeros((5000, 1000), np.float32)
    fixes = [found.fix for found in check(arrays, batch_size=48) if found.id == "LR201"]
    assert fixes == [
        "fit(legroom.stream((x, y), batch_size=48)): batches are cut out of your own arrays."
    ]
    with pytest.raises(ValueError, match="comes in batches of its own"):
        check(iter([arrays]), batch_size=48)
