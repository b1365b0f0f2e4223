"""From ops to the bytes live at each of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legroom.backends.tensorflow.forecast.needs import TracedNeeds
from legroom.backends.tensorflow.forecast.timeline import find_peak
from legroom.core.traces import TracedOp


def op(name, size, *inputs, **options):
    """An op with one output named after it."""
    return TracedOp(name, ((name, size),), inputs, **options)


def test_a_tensor_lives_until_its_last_use():
    steps = [op("a", 10), op("b", 20, "a"), op("c", 5, "b"), op("d", 1, "a", "c")]
    peak = find_peak(steps)
    assert peak.live_bytes == 35
    assert peak.op == "c"
    assert peak.tensors == (("b", 20), ("a", 10), ("c", 5))


def test_a_reshape_takes_no_memory_and_keeps_its_input():
    steps = [op("a", 10), op("view", 10, "a", passes_on=True), op("b", 3), op("c", 1, "view")]
    assert find_peak(steps).live_bytes == 13
    assert find_peak([*steps, op("d", 1, "a")]).live_bytes == 13


def test_an_elementwise_op_writes_over_what_nobody_else_reads():
    alone = [op("a", 10), op("b", 10, "a", may_reuse=True), op("c", 1, "b")]
    assert find_peak(alone).live_bytes == 11
    shared = [*alone, op("d", 1, "a")]
    assert find_peak(shared).live_bytes == 21


def test_scratch_counts_while_the_op_runs():
    assert find_peak([op("a", 10, scratch=100), op("b", 20, "a")]).live_bytes == 110


def test_what_is_returned_stays():
    steps = [op("a", 10), op("b", 20)]
    assert find_peak(steps).live_bytes == 20
    assert find_peak(steps, kept=["a"]).live_bytes == 30


@given(
    st.lists(st.tuples(st.integers(0, 100), st.lists(st.integers(0, 20), max_size=3)), max_size=20)
)
def test_the_peak_lies_between_the_largest_and_the_sum(graph):
    steps = [
        op(f"t{i}", size, *(f"t{j}" for j in inputs if j < i))
        for i, (size, inputs) in enumerate(graph)
    ]
    peak = find_peak(steps).live_bytes
    sizes = [size for size, _ in graph]
    assert max(sizes, default=0) <= peak <= sum(sizes)


class Trace:
    """A step whose first op grows with the batch."""

    kept = ("gradient",)

    def ops(self, samples):
        return [op("activation", 10 * samples), op("gradient", 40, "activation")]


def test_slices_add_a_copy_of_the_gradients_that_wait_for_their_function():
    fused, split = TracedNeeds([Trace()], 8), TracedNeeds([Trace(), Trace()], 8)
    assert fused(8) == 120
    assert fused(4) == 80
    assert split(8) == 40 + 120
    assert split(4) == 40 + 40 + 80
