"""The order of a stream: every sample once, found again at any place, well mixed."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from legroom.data.order import PassOrder


def whole(order: PassOrder, sizes: list[int]) -> list[int]:
    """The samples of a pass by their number in the files."""
    first = np.concatenate([[0], np.cumsum(sizes)])
    samples = []
    for window in range(order.windows):
        read = np.concatenate(
            [np.arange(first[c], first[c + 1]) for c in order.chunks(window)] or [[]]
        )
        assert len(read) == order.starts[window + 1] - order.starts[window]
        samples += read[order.samples(window)].tolist()
    return samples


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    at_once=st.integers(1, 50),
    seed=st.none() | st.integers(0, 2**40),
)
def test_each_sample_comes_once_and_each_place_is_in_its_window(
    sizes: list[int], at_once: int, seed: int | None
) -> None:
    order = PassOrder(sizes, at_once, seed)
    samples = whole(order, sizes)
    assert sorted(samples) == list(range(sum(sizes)))
    assert whole(PassOrder(sizes, at_once, seed), sizes) == samples
    if seed is None:
        assert samples == sorted(samples)
    for place in range(sum(sizes)):
        window = order.window_at(place)
        assert order.starts[window] <= place < order.starts[window + 1]


def test_sorted_classes_are_mixed() -> None:
    """Ten classes one after the other, in windows of a tenth: batches as even as by a shuffle."""
    sizes = [10] * 1000
    labels = np.arange(10_000) // 1000
    counts, shuffled = [], []
    rng = np.random.default_rng(0)
    for seed in range(5):
        mixed = labels[whole(PassOrder(sizes, 100, seed), sizes)].reshape(-1, 50)
        perfect = rng.permutation(labels).reshape(-1, 50)
        counts += [np.bincount(batch, minlength=10) for batch in mixed]
        shuffled += [np.bincount(batch, minlength=10) for batch in perfect]
    assert np.std(counts) < 1.3 * np.std(shuffled)


def test_passes_differ() -> None:
    sizes = [7] * 30
    assert whole(PassOrder(sizes, 5, 1), sizes) != whole(PassOrder(sizes, 5, 2), sizes)
