from __future__ import annotations

import pytest

from legroom.machine.gpu import Gpu, GpuHolder, _visible, card_of

UUIDS = ["GPU-aaaa-1", "GPU-aabb-2", "GPU-cccc-3"]


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("-1", []),
        ("NoDevFiles", []),
        ("1", [1]),
        ("2,0", [2, 0]),
        (" 2 , 0 ", [2, 0]),
        ("0,7,1", [0]),  # the first entry that names no card ends the list
        ("0,,1", [0]),
        ("-1,0", []),
        ("1,1", []),  # the same card twice is an error to CUDA: nothing is visible
        ("GPU-cccc-3", [2]),
        ("GPU-c,GPU-aab", [2, 1]),
        ("GPU-aa", []),  # not unique
        ("GPU-cccc-3,2", []),
    ],
)
def test_visible_devices_as_cuda_reads_them(wanted: str | None, numbers: list[int]) -> None:
    assert _visible(UUIDS, wanted) == numbers


def test_record_round_trip() -> None:
    holder = GpuHolder(pid=7, name="python", used_bytes=None)
    gpu = Gpu(0, "H200", "GPU-1", total_bytes=10, free_bytes=4, holders=(holder,))
    assert Gpu.from_json(gpu.to_json()) == gpu


@pytest.mark.parametrize(
    ("number", "parts", "card"),
    [
        (0, [1], 0),
        (1, [1, 1], 1),
        (0, [2, 1], 0),  # two logical devices on the first card
        (1, [2, 1], 0),
        (2, [2, 1], 1),
        (3, [2, 1], None),
        (0, [], None),
    ],
)
def test_the_card_of_a_logical_device(number: int, parts: list[int], card: int | None) -> None:
    assert card_of(number, parts) == card
