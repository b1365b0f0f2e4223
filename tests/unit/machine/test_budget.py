"""What a device's figures come to, for situations that people are in.

The pools and cards are real: TensorFlow's own lines "Created device … with … MB memory" in public
logs, and what the driver counts on such cards; the H200's were read by us.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.machine.budget import (
    DeviceLimit,
    DeviceReading,
    describe_reading,
    judge,
    left_free,
    would_reserve,
)

MIB = 2**20


def gpu(device: str = "GPU:0", **figures: int | bool | None) -> DeviceReading:
    """A reading with its sizes in MiB, as the logs have them."""
    scaled = {
        key: value * MIB if key.endswith("_bytes") and value is not None else value
        for key, value in figures.items()
    }
    return DeviceReading(device, **scaled)  # type: ignore[arg-type]


# (what it is, what was read, the limit in MiB, whether it is certain, whose word it is)
SITUATIONS: list[tuple[str, DeviceReading, int | None, bool, str]] = [
    (
        "a T4 on Kaggle, as it starts: what the driver calls free is the rest",
        gpu(allocator_bytes=13_757, card_bytes=15_360, free_bytes=1_050, in_use_bytes=98),
        13_757, True, "allocator",
    ),
    (
        "a T4 on Colab, growth off, a gradient step in between",
        gpu(allocator_bytes=13_942, card_bytes=15_360, free_bytes=856, in_use_bytes=9_100,
            peak_bytes=12_400),
        13_942, True, "allocator",
    ),
    (
        "a P100 on Kaggle",
        gpu(allocator_bytes=15_403, card_bytes=16_280, free_bytes=493, in_use_bytes=210),
        15_403, True, "allocator",
    ),
    (
        "the second of two T4s, while the first trains something else",
        gpu("GPU:1", allocator_bytes=13_757, card_bytes=15_360, free_bytes=1_050, in_use_bytes=3),
        13_757, True, "allocator",
    ),
    (
        "the second of two T4s, reserved but not yet taken: nothing was computed on it",
        gpu("GPU:1", allocator_bytes=13_757, card_bytes=15_360, free_bytes=14_807, in_use_bytes=0),
        13_757, True, "allocator",
    ),
    (
        "an A100 of which another process held most at the start: a small pool, all of it taken",
        gpu(allocator_bytes=861, card_bytes=40_536, free_bytes=225, in_use_bytes=12),
        861, True, "allocator",
    ),
    (
        "an A100 with growth on, alone on the card",
        gpu(allocator_bytes=38_366, grows=True, card_bytes=40_536, free_bytes=39_700,
            in_use_bytes=150),
        38_366, True, "allocator",
    ),
    (
        "an A100 with growth on; another process has taken 20 GiB since it started",
        gpu(allocator_bytes=38_366, grows=True, card_bytes=40_536, free_bytes=18_900,
            in_use_bytes=150),
        19_050, False, "driver",
    ),
    (
        "the same between two steps: what the pool grew to is its own",
        gpu(allocator_bytes=38_366, grows=True, card_bytes=40_536, free_bytes=6_100,
            in_use_bytes=1_150, peak_bytes=13_200),
        19_300, False, "driver",
    ),
    (
        "growth on, and what the pool has and could still take is all of its limit",
        gpu(allocator_bytes=38_366, grows=True, card_bytes=40_536, free_bytes=9_000,
            in_use_bytes=700, peak_bytes=29_500),
        38_366, True, "allocator",
    ),
    (
        "a pool that should be there and is not: others were faster at the first allocation",
        gpu(allocator_bytes=13_757, card_bytes=15_360, free_bytes=9_000, in_use_bytes=50),
        9_050, False, "driver",
    ),
    (
        "one of two logical devices on a T4",
        gpu("GPU:1", allocator_bytes=4_096, cap_bytes=None, card_bytes=15_360, free_bytes=6_500,
            in_use_bytes=80),
        4_096, True, "allocator",
    ),
    (
        "a cap of legroom's own on an A100-80",
        gpu(allocator_bytes=8_192, cap_bytes=8_192, card_bytes=81_920, free_bytes=72_900,
            in_use_bytes=60),
        8_192, True, "allocator",
    ),
    (
        "a cap of legroom's own where the allocator does not tell",
        gpu(cap_bytes=8_192, card_bytes=81_920, free_bytes=72_900, in_use_bytes=60),
        8_192, True, "cap",
    ),
    (
        "half of a V100, by per_process_gpu_memory_fraction",
        gpu(allocator_bytes=8_080, card_bytes=16_384, free_bytes=7_800, in_use_bytes=400),
        8_080, True, "allocator",
    ),
    (
        "a fraction of 0.9 of a card that has half of it free",
        gpu(allocator_bytes=14_544, card_bytes=16_384, free_bytes=300, in_use_bytes=7_600),
        14_544, True, "allocator",  # taken, as far as anyone can see
    ),
    (
        "a MIG slice of an A100 (1g.5gb), read as such",
        gpu(allocator_bytes=3_026, card_bytes=4_864, free_bytes=1_536, in_use_bytes=20),
        3_026, True, "allocator",
    ),
    (
        "a MIG slice, and a driver that tells of the whole card",
        gpu(allocator_bytes=3_026, card_bytes=40_536, free_bytes=30_100, in_use_bytes=20),
        3_026, True, "allocator",
    ),
    (
        "no NVML in a container",
        gpu(allocator_bytes=13_757, in_use_bytes=98),
        13_757, True, "allocator",
    ),
    (
        "no NVML in a container, growth on: others may hold part of it",
        gpu(allocator_bytes=13_757, grows=True, in_use_bytes=98),
        13_757, False, "allocator",
    ),
    (
        "an allocator that does not tell, on a card that a pool has reserved",
        gpu(card_bytes=15_360, free_bytes=1_050, in_use_bytes=98),
        1_148, False, "driver",
    ),
    ("nobody tells", gpu(in_use_bytes=98), None, False, "nobody"),
    (
        "unified memory: a fraction of 1.5",
        gpu(allocator_bytes=22_663, card_bytes=15_360, free_bytes=14_700, in_use_bytes=50),
        22_663, False, "allocator",
    ),
    (
        "CUDA's own allocator (cuda_malloc_async), which has no limit but the card",
        gpu(allocator_bytes=13_757, hard=False, grows=True, card_bytes=15_360, free_bytes=14_600,
            in_use_bytes=98),
        14_698, False, "driver",
    ),
    (
        "the same without NVML",
        gpu(allocator_bytes=13_757, hard=False, in_use_bytes=98),
        13_757, False, "allocator",
    ),
    ("a capped CPU", gpu("CPU:0", cap_bytes=300), 300, True, "cap"),
    (
        "a CPU's placeholder of 256 MiB is not believed",
        gpu("CPU:0", allocator_bytes=256),
        None, True, "host",
    ),
    (
        "a capped CPU whose placeholder is smaller",
        gpu("CPU:0", allocator_bytes=256, cap_bytes=1_087),
        1_087, True, "cap",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reading", "limit", "certain", "source"),
    [pytest.param(*rest, id=name) for name, *rest in SITUATIONS],
)
def test_a_situation(reading: DeviceReading, limit: int | None, certain: bool, source: str) -> None:
    expected = None if limit is None else limit * MIB
    assert judge(reading) == DeviceLimit(expected, certain, source)
    assert DeviceReading.from_json(reading.to_json()) == reading


SIZES = st.none() | st.integers(0, 200_000).map(lambda size: size * MIB)


@given(
    st.builds(
        DeviceReading,
        st.sampled_from(["GPU:0", "GPU:3", "CPU:0"]),
        allocator_bytes=SIZES,
        grows=st.booleans(),
        hard=st.booleans(),
        in_use_bytes=SIZES,
        peak_bytes=SIZES,
        cap_bytes=SIZES,
        card_bytes=SIZES,
        free_bytes=SIZES,
    )
)
def test_what_holds_for_any_figures(reading: DeviceReading) -> None:
    found = judge(reading)
    if reading.is_gpu and found.certain:
        # Certain means: the word of the allocator, or of the cap that was set on it.
        assert found.limit_bytes in (reading.allocator_bytes, reading.cap_bytes)
        assert found.limit_bytes
    if reading.is_gpu and reading.hard and reading.allocator_bytes:
        assert found.limit_bytes is not None
        assert found.limit_bytes <= reading.allocator_bytes
    assert describe_reading(reading)
    # More free memory never makes a limit smaller.
    if reading.free_bytes is not None and reading.grows:
        more = dataclasses.replace(reading, free_bytes=reading.free_bytes + 4096 * MIB)
        assert (judge(more).limit_bytes or 0) >= (found.limit_bytes or 0)


@pytest.mark.parametrize(
    ("free", "capability", "left"),
    [
        (1_900, 7, 225),
        (11_000, 3, 500),
        (16_000, 6, 500),
        (15_000, 7, 1_050),
        (40_000, 8, 1_536),
        (80_000, 9, 1_800),
        (180_000, 10, 1_800),
        (15_000, None, 1_800),  # unknown: the most that it leaves of any card
    ],
)
def test_what_tensorflow_leaves_free(free: int, capability: int | None, left: int) -> None:
    assert left_free(free * MIB, capability) == left * MIB


@pytest.mark.parametrize(
    ("card", "free", "capability", "logged"),
    [
        # What the driver calls free of an empty card, and the pools that TensorFlow logged on it.
        ("T4", 15_109, 7, (13_627, 13_664, 13_757, 13_764, 13_795, 13_840, 13_942)),
        ("P100", 16_280, 6, (15_403,)),
        ("A100-40", 40_536, 8, (38_139, 38_283, 38_341, 38_366, 38_482)),
        ("A100-80", 81_251, 8, (79_197,)),
    ],
)
def test_what_it_would_reserve_is_near_what_was_logged(
    card: str, free: int, capability: int, logged: tuple[int, ...]
) -> None:
    would = would_reserve(free * MIB, capability) / MIB
    for pool in logged:
        assert would == pytest.approx(pool, rel=0.025), card


def test_a_card_that_others_have_filled() -> None:
    assert would_reserve(0, 8) == 0
    assert 0 <= would_reserve(500 * MIB, 8) <= 500 * MIB


def test_the_words_for_it() -> None:
    t4 = SITUATIONS[0][1]
    assert describe_reading(t4) == (
        "TensorFlow's allocator may use 14.4 GB of GPU:0; the driver counts 16.1 GB in all and "
        "1.10 GB free: they agree"
    )
    shared = next(reading for name, reading, *_ in SITUATIONS if "has taken 20 GiB" in name)
    assert describe_reading(shared).endswith(
        "19.8 GB free: they DISAGREE; not certain, so batches are tried whole first"
    )
    assert "the driver does not answer" in describe_reading(gpu(allocator_bytes=13_757))
    loose = next(reading for name, reading, *_ in SITUATIONS if "cuda_malloc_async" in name)
    assert "a limit that it does not keep to" in describe_reading(loose)
    assert "agree" not in describe_reading(loose).lower()
    assert describe_reading(gpu("CPU:0", cap_bytes=256)) == (
        "TensorFlow's allocator for CPU:0 is capped at 268 MB"
    )
