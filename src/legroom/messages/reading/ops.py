"""From the name of a TensorFlow node to the Keras layer that it belongs to.

A node's name is the path of the scopes it was made in: ``gradient_tape/sequential/conv2d_1/
convolution/Conv2DBackpropFilter``. The layer is in there, among scopes of the model, of Keras's
machinery and of TensorFlow's own inner functions. Without the model this is a reading by form:
scopes that are known to be no layer are set aside, and the innermost that is left is the layer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Literal

__all__ = ["OpRole", "layer_of_op", "match_layer", "plain_op", "role_of_op"]

OpRole = Literal["forward", "gradient", "optimizer", "loss", "input"]

_NODE = re.compile(r"\{\{node ([^{}\s]{1,500})\}\}")
_MARKS = re.compile(r"\{\{[^{}]{0,600}\}\}")
# Names of functions and of calls to functions: they say that something in them failed, not what.
_FUNCTIONS = re.compile(
    r"__(?:inference|forward|backward|wrapped|call)_|"
    r"(?:Stateful)?PartitionedCall(?:_\d+)?$|cluster_\d|XRTExecute$|_XlaRun$"
)
_OPTIMIZERS = re.compile(
    r"(?:adam|adamw|adamax|nadam|sgd|rmsprop|adagrad|adadelta|ftrl|lion|lamb|muon|adafactor|"
    r"loss_scale_optimizer|(?:\w+_)?optimizer|Adam|RMSprop|Momentum|GradientDescent|"
    r"training(?:_\d+)?)(?:_\d+)?$"
)
_APPLY = re.compile(r"(?:Resource)?(?:Sparse)?Apply[A-Z]\w*$|Assign(?:Sub|Add)VariableOp")
_GRADIENTS = re.compile(r"(?:gradient_tape|gradients)(?:_\d+)?$")
_LOSSES = re.compile(r"(?:compile_loss|loss|losses|compute_loss)(?:_\d+)?$")
_INPUTS = re.compile(r"(?:IteratorGetNext|Iterator|OneShotIterator|FeatureDecode\w*)(?:_\d+)?$")
# Scopes of calls, replicas and control flow, in front of the model's own or in the middle.
_PLUMBING = re.compile(
    r"(?:StatefulPartitionedCall|PartitionedCall|gradient_tape|gradients|replica|tower|legroom\w*|"
    r"while|body|cond|then|else|branch_executed|loop_body|pfor|inner|train_function|train_step|"
    r"one_step_on_data|multi_step_on_iterator|map|AddN|TensorArray\w*|\w*Optimizer|training)(?:_\d+)?$|"
    r"_\d+$"
)
# Scopes that layers open inside themselves, and that no layer is called by.
_INSIDE = re.compile(
    r"(?:moments|batchnorm|instancenorm|convolution|separable_conv2d|Tensordot|tensordot|einsum|"
    r"matmul|dot_product|random_uniform|stateless_\w+|lstm_cell|gru_cell|simple_rnn_cell|"
    r"embedding_lookup|mul|sub|truediv|concat|transpose|strided_slice|stack|unstack|Pad|"
    r"Initializer|read|ReadVariableOp)(?:_\d+)?$"
)
# The same, but layers are called so too: "dropout_1/dropout/Mul".
_MAYBE_INSIDE = re.compile(
    r"(?:depthwise|conv2d_transpose|conv3d_transpose|dropout|softmax|relu|gelu|silu|sigmoid|tanh|"
    r"elu|selu|add|reshape|resize|kernel|bias|gamma|beta|cell)(?:_\d+)?$"
)
# Kinds of ops are written in capitals (Conv2D, BiasAdd, FusedBatchNormV3); layers seldom are.
_OP_KIND = re.compile(r"_?[A-Z][A-Za-z0-9]*(?:_\d+)?(?:_grad)?(?:_\d+)?(?:-[\w-]+)?$")
_SUFFIX = re.compile(r"_\d+$")


def plain_op(raw: str | None) -> str | None:
    """The name of an op without TensorFlow's marks; None where it names a whole function."""
    if not raw:
        return None
    node = _NODE.search(raw)
    name = (node.group(1) if node else _MARKS.sub("", raw)).strip(" '\"`,;:.[](){}^")
    return None if not name or _FUNCTIONS.match(name) else name


def role_of_op(op: str) -> OpRole:
    """In which part of a training step an op runs, by the scopes in its name."""
    parts = op.split("/")
    applies = _APPLY.match(parts[-1]) or any(_OPTIMIZERS.match(part) for part in parts[:-1])
    # Old Keras put the gradients inside the optimizer's scope; they are gradients still.
    if applies and not any(_GRADIENTS.match(part) for part in parts):
        return "optimizer"
    if any(_GRADIENTS.match(part) or part.endswith("_grad") for part in parts):
        return "gradient"
    if "Backprop" in parts[-1]:
        return "gradient"
    if any(_LOSSES.match(part) for part in parts[:-1]):
        return "loss"
    if _INPUTS.match(parts[-1]):
        return "input"
    return "forward"


def layer_of_op(op: str | None) -> str | None:
    """The layer that a node belongs to, or None where its name shows none.

    Example:
        >>> layer_of_op("gradient_tape/sequential/conv2d_1/convolution/Conv2DBackpropFilter")
        'conv2d_1'
    """
    if not op or role_of_op(op) in ("optimizer", "loss", "input"):
        return None
    parts = op.split("/")
    # The last part is the op itself. The optimizer's name stands before old Keras's gradients.
    scopes = [part for part in parts[:-1] if part and not _PLUMBING.match(part)]
    while scopes and len(parts) > 2 and _OPTIMIZERS.match(scopes[0]):
        scopes.pop(0)
    named = list(scopes)
    while named:
        inner = named[-1].removesuffix("_grad")
        # The outermost scope is the model's: a doubtful one next to it is the layer.
        doubtful = len(named) > 2 and (_MAYBE_INSIDE.match(inner) or _OP_KIND.match(inner))
        if not (_INSIDE.match(inner) or doubtful):
            break
        named.pop()
    return named[-1] if named and not named[-1].endswith("_grad") else None


def match_layer(op: str | None, names: Iterable[str]) -> str | None:
    """The layer among a model's own names that a node belongs to.

    TensorFlow makes scopes unique by adding ``_1``: the layer ``conv2d`` runs under ``conv2d_2``
    when that scope was free first. With the names at hand both readings can be tried.
    """
    known = set(names)
    for part in reversed((op or "").split("/")):
        for name in (part, _SUFFIX.sub("", part), _SUFFIX.sub("", _SUFFIX.sub("", part))):
            if name in known:
                return name
    return None
