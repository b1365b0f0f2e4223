"""Shapes as functions of the batch size."""

from __future__ import annotations

from legroom.backends.tensorflow.graph.axes import TRACED_SIZE, lengths_at


def test_an_axis_grows_with_the_samples_that_are_in_it():
    shape = [TRACED_SIZE**2, 3, 2 * TRACED_SIZE, None]
    assert lengths_at(shape, 5) == [25, 3, 10, 5]
