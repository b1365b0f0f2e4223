"""What a step needs by a walk over its graph, and the pool that it goes through in."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from legroom.backends.tensorflow.forecast.needs import (
    TracedNeeds,
    WalkedNeeds,
    settled_needs,
    usable_share,
)
from legroom.backends.tensorflow.forecast.replay import replay, smallest_pool
from legroom.backends.tensorflow.forecast.script import Allocation, Script
from legroom.core.graphs import Graph, Node, StepWalk
from legroom.core.traces import TracedOp

MIB = 2**20


def script(*moves):
    """A step that takes so many MiB under a number, and gives numbers back."""
    entries = [m if isinstance(m, int) else Allocation(m[0], "op", "output", m[1] * MIB)
               for m in moves]  # fmt: skip
    return Script([], [], [], [entries], recorded=1)


def test_a_pool_in_pieces_has_to_be_larger_than_the_peak():
    # Blocks of 8 fill a pool of 64, and every other one is given back: 32 are free, but no two
    # of them beside each other.
    blocks = [(number, 8) for number in range(1, 9)]
    pieces = script((9, 64), 9, *blocks, 1, 3, 5, 7, (10, 20), 2, 4, 6, 8, 10)
    assert max(replay(pieces, 1, 3).peaks) <= 64 * MIB
    assert smallest_pool(pieces, 1) >= 80 * MIB


def test_a_pool_for_one_block_is_about_as_large_as_the_block():
    assert smallest_pool(script((1, 100), 1), 1) == pytest.approx(100 * MIB, rel=0.05)


def walk(gradients):
    """An activation of a MiB for each sample."""
    size = (((0.0, float(MIB)),), 1.0)
    nodes = [
        Node("batch", "none", [], [], [None], cheap=True),
        Node("activation", "new", [(0, 0)], [], [size]),
        Node("loss", "new", [(1, 0)], [], [(((1.0, 0.0),), 4.0)]),
    ]
    held = [
        SimpleNamespace(role=role, path=role, nbytes=nbytes, shape=(nbytes // 4,),
                        dtype="float32", name="", born=False)
        for role, nbytes in (("weights", 8 * MIB), ("gradients", gradients))
        if nbytes
    ]  # fmt: skip
    inputs = [(((0.0, float(MIB // 2)),), 1.0)]
    return StepWalk(Graph(nodes, [0], [(2, 0)]), held, inputs, 1)


def test_what_is_in_use_before_the_step_is_not_counted():
    assert 100 * MIB <= WalkedNeeds(walk(0), 100)(100) <= 150 * MIB


def test_slices_take_their_part_of_the_batch_and_a_sum_of_gradients():
    plain, summed = WalkedNeeds(walk(0), 100), WalkedNeeds(walk(8 * MIB), 100)
    assert summed(50) - plain(50) == pytest.approx(8 * MIB, abs=0.05 * plain(50))
    assert (50 + 25) * MIB <= plain(50) <= 1.5 * (50 + 25) * MIB


def test_a_whole_batch_keeps_its_gradients_until_all_are_there():
    plain, kept = WalkedNeeds(walk(0), 100), WalkedNeeds(walk(8 * MIB), 100)
    assert kept(100) - plain(100) == pytest.approx(8 * MIB, abs=0.05 * plain(100))


def test_past_the_batch_it_grows_as_slices_do():
    needs = WalkedNeeds(walk(0), 100)
    assert needs(200) >= 3.5 * needs(50)
    assert needs(400) >= 7 * needs(50)


def traced(loops=False):
    """By the ops alone, 1000 bytes."""
    ops = [TracedOp("activation", (("a", 1000),), ())]
    return TracedNeeds([SimpleNamespace(kept=[], loops=loops, ops=lambda n: ops)], 100)


@pytest.mark.parametrize(
    ("free", "loops", "walks", "source"),
    [
        (1900, False, True, "ops"),
        (1899, False, True, "graph"),
        (1899, False, False, "ops"),  # no graph to walk over
        (10**9, True, True, "graph"),  # the inside of a loop is not among its ops
    ],
)
def test_ops_are_enough_where_they_settle_it(free, loops, walks, source):
    found = settled_needs(traced(loops), 100, free, lambda: walk(0) if walks else None)
    assert found.source == source


@pytest.mark.parametrize(
    ("compiled", "limited", "planned", "share"),
    [
        (False, True, False, 1.0),
        (False, True, True, 0.9),
        (False, False, False, 0.7),
        (False, False, True, 0.7),
        (True, True, True, 0.5),
        (True, False, False, 0.5),
    ],
)
def test_what_can_be_used_of_what_is_free(compiled, limited, planned, share):
    assert usable_share(compiled=compiled, limited=limited, planned=planned) == share
