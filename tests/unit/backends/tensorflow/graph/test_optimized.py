"""A step as Grappler leaves it: what it is given, its shapes, and what if Grappler fails."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from keras import layers

from legroom.backends.tensorflow.forecast.graph_script import write_script
from legroom.backends.tensorflow.forecast.replay import replay
from legroom.backends.tensorflow.graph import optimized, walk
from legroom.backends.tensorflow.graph.stepgraph import trace_step


@pytest.fixture(scope="module")
def step():
    model = keras.Sequential(
        [keras.Input((64,)), layers.Dense(256, "relu"), layers.Dropout(0.1), layers.Dense(8)]
    )
    model.compile("adam", "mse")
    return trace_step(model)


def peak(step) -> int:
    script = write_script(walk.walk_step(step), step.held, walk.input_sizes(step))
    return replay(script, 512).steady


def test_it_is_given_what_the_step_holds(step):
    made = optimized.optimized_step(step)
    assert len(made.batch) == 1  # the op that fetches it
    assert {item.name for item in made.held.values()} == {item.name for item in step.held}
    graph = walk.walk_step(step)
    names = [graph.nodes[number].name for number in graph.arguments]
    assert set(names) == {item.name for item in step.held}
    assert graph.in_order
    (late,) = graph.late
    assert graph.nodes[late].name in made.batch


def test_shapes_are_those_of_a_batch(step):
    graph = optimized.optimized_step(step).graph
    unknown = [
        tensor.name
        for op in graph.get_operations()
        for tensor in op.outputs
        if tensor.shape.rank is None and tensor.dtype not in (tf.resource, tf.variant)
    ]
    assert unknown == []


def test_where_the_optimizer_fails_the_graph_is_walked_as_it_is(step, monkeypatch):
    usual = peak(step)

    def fails(graph):
        raise tf.errors.InvalidArgumentError(None, None, "no such kernel")

    monkeypatch.setattr(optimized, "_optimized", fails)
    assert not walk.walk_step(step).in_order
    assert peak(step) == pytest.approx(usual, rel=0.3)
