"""A step that XLA compiles, in the allocator's pool."""

from __future__ import annotations

import dataclasses

import pytest

from legroom.backends.tensorflow.forecast.replay import replay, smallest_pool
from legroom.backends.tensorflow.forecast.xla_script import write_compiled

MIB = 2**20


@dataclasses.dataclass(frozen=True)
class Held:
    name: str
    role: str
    shape: tuple[int, ...]
    born: bool = False
    dtype: str = "float32"

    @property
    def path(self) -> str:
        return self.name

    @property
    def nbytes(self) -> int:
        return 4 * self.shape[0]


WEIGHT = Held("w", "weights", (MIB,))
SLOTS = [Held(name, "optimizer", (MIB,), born=True) for name in ("m", "v")]


def live(script, steps=4):
    """The most that is live in each step, without the allocator."""
    held, peaks = {}, []
    for name, moves, _ in script.phases(1, steps):
        peak = 0
        for number, size in moves:
            if size < 0:
                del held[number]
            else:
                held[number] = size
            peak = max(peak, sum(held.values()))
        if name.startswith("step"):
            peaks.append(peak // MIB)
    return peaks


def test_what_is_held_and_the_program_make_the_peak():
    script = write_compiled([WEIGHT], 100 * MIB, 8 * MIB)
    assert live(script) == [4 + 100 + 8] * 4
    assert smallest_pool(script, 1) == pytest.approx((4 + 100 + 8) * MIB, rel=0.1)


def test_in_a_pool_that_grew_the_program_gets_a_larger_chunk_than_it_asked_for():
    # A region of 128 MiB is made for it, and what is left of that is too little to be cut off.
    script = write_compiled([WEIGHT], 100 * MIB, 0)
    assert replay(script, 1).steady == (4 + 128) * MIB


def test_the_first_step_has_the_shared_zeros_beside_what_it_makes_of_them():
    # Two slots of 4 MiB begin as the same zeros, and each gets memory of its own.
    first, *later = live(write_compiled([WEIGHT, *SLOTS], 100 * MIB, 0))
    assert first == 4 + 100 + 4 + 8
    assert later == [4 + 100 + 8] * 3


def test_zeros_that_a_slot_goes_on_to_have_stay():
    touched, idle = SLOTS[0], dataclasses.replace(SLOTS[1], name="")
    assert live(write_compiled([WEIGHT, touched, idle], 16 * MIB, 0)) == [4 + 16 + 4 + 4] * 4
    assert live(write_compiled([WEIGHT, idle], 16 * MIB, 0)) == [4 + 16 + 4] * 4
