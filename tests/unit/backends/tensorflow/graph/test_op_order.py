"""An order of a step's ops that TensorFlow can't run is not imposed."""

from __future__ import annotations

import tensorflow as tf

from legroom.backends.tensorflow.graph.op_order import impose_order


def trace(pairs):
    """A function with two products in a row, and its ops bound in pairs; how many waited."""
    bound = []

    def order(graph):
        place = {node.name: number for number, node in enumerate(graph.nodes)}
        return [(place[one], place[other]) for one, other in pairs]

    @tf.function(input_signature=[tf.TensorSpec((None, 4))])
    def step(x):
        first = tf.linalg.matmul(x, tf.ones((4, 4)), name="first")
        second = tf.linalg.matmul(first, tf.ones((4, 4)), name="second")
        other = tf.linalg.matmul(x, tf.ones((4, 4)), name="other")
        bound.append(impose_order(tf.compat.v1.get_default_graph(), [second, other], order))
        return second + other

    return step.get_concrete_function(), bound[-1]


def test_an_op_waits_for_another():
    step, count = trace([("second", "other")])
    assert count == 1
    assert [op.name for op in step.graph.get_operation_by_name("other").control_inputs] == [
        "second"
    ]


def test_nothing_waits_for_itself():
    # In TensorFlow's optimizer a circle is a segmentation fault.
    step, count = trace([("second", "other"), ("other", "first")])
    assert count == 0
    assert step(tf.ones((2, 4))).numpy().tolist() == [[20.0] * 4] * 2
