"""The model of TensorFlow's allocator."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from legroom.backends.tensorflow.forecast.bfc import BestFit

MIB = 2**20


def test_sizes_are_rounded_up():
    pool = BestFit()
    pool.allocate(1)
    assert pool.in_use == 256
    pool.allocate(257)
    assert pool.in_use == 256 + 512


def test_a_chunk_that_is_less_than_twice_as_large_is_given_whole():
    pool = BestFit()
    # Two chunks with something between, so that they do not become one.
    large, small = pool.allocate(30 * MIB), pool.allocate(MIB)
    assert small is not None
    pool.release(large)
    before = pool.in_use
    pool.allocate(16 * MIB)
    assert pool.in_use - before > 16 * MIB


def test_a_chunk_that_is_twice_as_large_is_split():
    pool = BestFit()
    first, _ = pool.allocate(2 * MIB), pool.allocate(256)
    pool.release(first)
    before = pool.in_use
    pool.allocate(MIB)
    assert pool.in_use - before == MIB


def test_neighbours_that_are_free_become_one():
    pool = BestFit()
    parts = [pool.allocate(MIB // 2) for _ in range(4)]  # the first region, whole
    for part in parts:
        pool.release(part)
    assert pool.in_use == 0
    assert pool.allocate(2 * MIB) == parts[0]


def test_a_pool_with_a_limit_runs_out():
    pool = BestFit(limit=10 * MIB)
    assert pool.allocate(6 * MIB) is not None
    assert pool.allocate(6 * MIB) is None
    assert pool.allocate(MIB) is not None


@given(
    st.lists(st.tuples(st.integers(1, 40 * MIB), st.integers(0, 3), st.booleans()), max_size=120)
)
def test_nothing_overlaps_and_the_books_are_right(requests):
    pool = BestFit()
    held: dict[int, int] = {}
    for size, which, releases in requests:
        if releases and held:
            address = sorted(held)[which % len(held)]
            del held[address]
            pool.release(address)
        else:
            address = pool.allocate(size)
            assert address not in held
            held[address] = size
            assert pool.size_at(address) >= size
        spans = sorted((start, start + pool.size_at(start)) for start in held)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(spans))
        assert pool.in_use == sum(pool.size_at(start) for start in held)
        assert pool.peak >= pool.in_use
    for address in list(held):
        pool.release(address)
    assert pool.in_use == 0
