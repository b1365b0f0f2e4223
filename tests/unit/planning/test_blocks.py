"""The choice of what to recompute, against every choice there is."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from legroom.core.traces import LayerCost
from legroom.planning.blocks import choose_blocks, held_bytes, leanest_blocks

COSTS = st.lists(
    st.builds(
        # What gradients read of that which comes in is a part of it.
        lambda kept, read, rest, work: LayerCost("layer", kept, read + rest, work, read),
        st.integers(0, 200),
        st.integers(0, 60),
        st.integers(1, 60),
        st.floats(0.1, 5.0),
    ),
    min_size=1,
    max_size=6,
)


def every_choice(count):
    """All strategies to put neighbours in blocks."""
    for marks in itertools.product((0, 1, 2), repeat=count):  # kept, first of a block, further on
        blocks = []
        for i, mark in enumerate(marks):
            if mark == 1:
                blocks.append([i, i + 1])
            elif mark == 2:
                if not blocks or blocks[-1][1] != i:
                    break
                blocks[-1][1] = i + 1
        else:
            yield [tuple(block) for block in blocks]


def work(costs, blocks):
    """The work done twice."""
    return sum(costs[i].work for start, stop in blocks for i in range(start, stop))


@given(COSTS, st.floats(0.2, 1.0))
def test_no_choice_that_fits_is_much_cheaper(costs, part):
    budget = int(sum(cost.kept_bytes for cost in costs) * part)
    chosen = choose_blocks(costs, budget)
    fitting = [b for b in every_choice(len(costs)) if held_bytes(costs, b) <= budget]
    if chosen is None:
        assert not fitting
        return
    assert held_bytes(costs, chosen) <= budget
    if fitting:
        assert work(costs, chosen) <= min(work(costs, blocks) for blocks in fitting) + 1e-9


def test_nothing_is_recomputed_where_all_fits():
    assert choose_blocks([LayerCost("a", 100, 10, 1.0)] * 4, 400) == []


def test_a_long_row_needs_about_its_root():
    costs = [LayerCost(f"layer{i}", 100, 100, 1.0) for i in range(64)]
    blocks = leanest_blocks(costs)
    assert held_bytes(costs, blocks) <= 100 * 2.2 * 8  # 2 √n, where all of n was


def test_what_is_behind_a_block_is_gone_when_it_runs_again():
    costs = [LayerCost(f"layer{i}", 100, 10, 1.0) for i in range(4)]
    assert held_bytes(costs, [(0, 2)]) == 10 + 200  # both of its layers, or 10 and the others
    assert held_bytes(costs, [(2, 4)]) == 200 + 10 + 200
    assert held_bytes(costs, []) == 400


def test_what_a_kept_layer_reads_of_a_block_is_kept():
    costs = [LayerCost(f"layer{i}", 100, 60, 1.0, read_bytes=50) for i in range(4)]
    assert held_bytes(costs, [(0, 2)]) == 10 + 50 + 200  # more than the block's 10 and 200
    assert held_bytes(costs, [(0, 1), (1, 2)]) == 10 + 60 + 50 + 200
    assert held_bytes(costs, [(3, 4)]) == 300 + 10 + 100  # 50 of what comes in is kept anyway


def test_cheap_layers_are_recomputed_first():
    costs = [LayerCost(f"layer{i}", 100, 10, 10.0 if i % 2 else 0.1) for i in range(8)]
    blocks = choose_blocks(costs, 560)
    assert blocks is not None
    assert all(stop - start == 1 and start % 2 == 0 for start, stop in blocks)
