# ruff: noqa: E501  (messages are as long as they are)
"""From the path of a node to the layer it belongs to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.messages.reading.ops import layer_of_op, match_layer, plain_op, role_of_op


@pytest.mark.parametrize(
    ("op", "layer"),
    [
        # Keras 3
        ("functional_1/conv2d_1/convolution", "conv2d_1"),
        ("sequential_1/conv2d_1_2/BiasAdd", "conv2d_1_2"),
        ("gradient_tape/sequential/conv2d_1/convolution/Conv2DBackpropFilter", "conv2d_1"),
        ("StatefulPartitionedCall/functional_1/batch_normalization_36_1/moments/SquaredDifference",
         "batch_normalization_36_1"),
        ("functional_1_1/multi_head_attention_1/softmax_1/Softmax", "multi_head_attention_1"),
        ("functional_1/embedding_1/GatherV2", "embedding_1"),
        ("functional_1/layer_normalization/Mul_2", "layer_normalization"),
        # Keras 2
        ("model/conv2d_3/Conv2D", "conv2d_3"),
        ("model/resnet50/conv2_block1_1_conv/Conv2D", "conv2_block1_1_conv"),
        ("model/dropout_1/dropout/Mul", "dropout_1"),
        ("model/dropout/dropout/Mul", "dropout"),
        ("sequential/dense/Tensordot/MatMul", "dense"),
        ("model/lstm/while/body/_1/model/lstm/while/lstm_cell/MatMul", "lstm"),
        ("model/bn/FusedBatchNormV3", "bn"),
        ("gradient_tape/model/dense_1/MatMul/MatMul_1", "dense_1"),
        # Before
        ("training/Adam/gradients/conv2d_1/convolution_grad/Conv2DBackpropInput", "conv2d_1"),
        ("replica_1/xception/block2_sepconv1_bn/FusedBatchNorm", "block2_sepconv1_bn"),
        ("SecondStageFeatureExtractor/cell_12/AvgPool_1", "cell_12"),
        ("dense_1/MatMul", "dense_1"), ("conv2d/convolution/Conv2D", "conv2d"),
        # No layer
        ("Mul", None), ("_EagerConst", None), ("36-leaky", None), ("", None), (None, None),
        ("Adam/Adam/update_4/ResourceApplyAdam", None), ("adam/Mul_3", None),
        ("compile_loss/mse/sub", None), ("loss/dense_1_loss/mul", None), ("IteratorGetNext", None),
        ("gradients/Reshape_18_grad/Reshape", None), ("a//b", "a"), ("/", None),
    ],
)  # fmt: skip
def test_layer_of_op(op: str | None, layer: str | None) -> None:
    assert layer_of_op(op) == layer


@pytest.mark.parametrize(
    ("op", "role"),
    [
        ("model/conv2d/Conv2D", "forward"), ("Mul", "forward"), ("adam/Mul_3", "optimizer"),
        ("Adam/Adam/update_4/ResourceApplyAdam", "optimizer"), ("IteratorGetNext", "input"),
        ("gradient_tape/model/dense/MatMul", "gradient"), ("compile_loss/mse/sub", "loss"),
        ("training/Adam/gradients/conv2d_1/convolution_grad/Conv2DBackpropInput", "gradient"),
        ("a/Conv2DBackpropFilter", "gradient"), ("", "forward"),
    ],
)  # fmt: skip
def test_role_of_op(op: str, role: str) -> None:
    assert role_of_op(op) == role


@pytest.mark.parametrize(
    ("raw", "name"),
    [
        ("{{node model/conv/Conv2D}}", "model/conv/Conv2D"), ("Mul", "Mul"), ("'Mul'", "Mul"),
        ("{{function_node __inference_f_3}}{{node a/b}}", "a/b"), ("__inference_h_38", None),
        ("StatefulPartitionedCall", None), ("StatefulPartitionedCall_2", None),
        ("PartitionedCall", None), ("StatefulPartitionedCall/a/Mul", "StatefulPartitionedCall/a/Mul"),
        ("{{function_node __wrapped__Fill}}", None), ("", None), (None, None), ("^", None),
    ],
)  # fmt: skip
def test_plain_op(raw: str | None, name: str | None) -> None:
    assert plain_op(raw) == name


def test_with_the_names_at_hand_a_scope_is_tied_to_its_layer() -> None:
    names = ["conv2d", "conv2d_1", "dense"]
    assert match_layer("sequential_1/conv2d_1_2/BiasAdd", names) == "conv2d_1"
    assert match_layer("sequential_1/conv2d_3/BiasAdd", names) == "conv2d"
    assert match_layer("sequential_1/dense_1_1/MatMul", names) == "dense"
    assert match_layer("sequential_1/other/MatMul", names) is None
    assert match_layer(None, names) is None


@given(st.text(alphabet="abcA_/0123{}[]. ", max_size=80))
def test_any_name_is_read(op: str) -> None:
    layer_of_op(op)
    role_of_op(op)
    plain_op(op)
    match_layer(op, ["a"])
