"""The models of PyTorch's allocators, and scripts that are played through them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.backends.torch.forecast.allocator import CachingAllocator, NoRoom, PlainAllocator
from legroom.backends.torch.forecast.replay import look_closer, play, smallest_pool
from legroom.backends.torch.forecast.script import RECORDED_SIZE, Piece, Script

MIB = 2**20


def test_small_blocks_share_a_segment():
    allocator = CachingAllocator()
    for key in range(3):
        allocator.allocate(key, 1000)
    assert (allocator.in_use, allocator.taken) == (3 * 1024, 2 * MIB)


@pytest.mark.parametrize(
    ("nbytes", "taken", "in_use"),
    [(MIB, 2 * MIB, MIB), (MIB + 1, 20 * MIB, MIB + 512), (10 * MIB, 10 * MIB, 10 * MIB),
     # What is left over is too little to be of use, and counts as in use.
     (11 * MIB + 1, 12 * MIB, 12 * MIB)],
)  # fmt: skip
def test_segments_are_as_large_as_pytorch_takes_them(nbytes, taken, in_use):
    allocator = CachingAllocator()
    allocator.allocate(0, nbytes)
    assert (allocator.taken, allocator.in_use) == (taken, in_use)


def test_what_is_free_side_by_side_is_one_block_again():
    allocator = CachingAllocator()
    for key in range(4):
        allocator.allocate(key, 4 * MIB)
    for key in (0, 2, 1):
        allocator.free(key)
    allocator.allocate(4, 9 * MIB)
    assert allocator.taken == 20 * MIB


def test_segments_that_are_free_are_given_back_before_there_is_no_room():
    allocator = CachingAllocator(limit=60 * MIB)
    allocator.allocate(0, 30 * MIB)
    allocator.free(0)
    allocator.allocate(1, 50 * MIB)
    with pytest.raises(NoRoom):
        allocator.allocate(2, 12 * MIB)


@given(st.lists(st.tuples(st.integers(1, 30 * MIB), st.booleans()), max_size=60))
def test_all_that_is_handed_out_is_counted(asked):
    allocator = CachingAllocator()
    live = {}
    for key, (nbytes, ends) in enumerate(asked):
        allocator.allocate(key, nbytes)
        live[key] = nbytes
        if ends and live:
            oldest = min(live)
            allocator.free(oldest)
            del live[oldest]
        assert sum(live.values()) <= allocator.in_use <= allocator.taken
        assert allocator.in_use <= sum(size + MIB + 512 for size in live.values())
    for key in live:
        allocator.free(key)
    assert allocator.in_use == 0


def script(*sizes: int, leftover: frozenset[int] = frozenset()) -> Script:
    """Weights of 100 bytes, then pieces that are all there at once, and gone at the end."""
    pieces = [Piece(100, "", "dense", "weights")]
    pieces += [Piece(size, "mm", "dense", "activations") for size in sizes]
    events = [*range(1, len(pieces)), *(~place for place in range(1, len(pieces)))]
    before = [0]
    for place in leftover:
        before.append(place)
        events.remove(place)
    return Script(pieces, before, events, leftover)


def test_what_can_be_divided_by_the_recorded_size_grows_with_the_batch():
    made = script(40 * RECORDED_SIZE, 7, 3 * RECORDED_SIZE**2)
    assert play(made, 10, PlainAllocator).steady == 100 + 400 + 7 + 300


def test_the_first_step_does_not_find_what_the_one_before_it_leaves():
    peaks = play(script(40, 60, leftover=frozenset([1])), 1, PlainAllocator)
    assert (peaks.first, peaks.steady) == (160, 200)


def test_what_is_in_memory_at_the_peak():
    live, line = look_closer(script(40, 60), 1, PlainAllocator())
    assert sorted(piece.nbytes for piece in live) == [40, 60, 100]
    assert [moment.in_use for moment in line] == [140, 200, 160, 100]
    assert line[1].kinds == {"weights": 100, "activations": 100}


def test_the_smallest_pool_is_one_that_is_enough():
    made = script(*(MIB * RECORDED_SIZE for _ in range(6)))
    pool = smallest_pool(made, 3, CachingAllocator)
    allocator = CachingAllocator(pool)
    for place in range(7):
        allocator.allocate(place, made.sizes(3)[place])
    assert pool <= 42 * MIB
