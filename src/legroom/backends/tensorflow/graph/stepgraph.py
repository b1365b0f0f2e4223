"""One step of a model as a graph, with all that is needed to run or count it without the model.

The graph is traced from the model's own `train_step`, `test_step` or `predict_step`, as Keras's
`fit` would trace it, and leaves the model as it was. What it captures (weights, optimizer slots,
metrics, seeds) is kept as shapes only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends import patches
from legroom.backends.parts import LOSS_SCALE_OPTIMIZER
from legroom.backends.tensorflow.graph.repeats import Repeat, repeating_updates
from legroom.backends.tensorflow.graph.specs import batch_specs, check_model
from legroom.backends.tensorflow.graph.summed_slice import add_up
from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.backends.tensorflow.step.traits import own_function
from legroom.core.errors import LegroomError, UnsupportedModelError
from legroom.messages.reading.ops import role_of_op

__all__ = ["Held", "StepGraph", "trace_step"]

_STEPS = {"fit": "train_step", "evaluate": "test_step", "predict": "predict_step"}
# A captured constant up to this size is kept as it is; larger ones are data, not shapes.
_SMALL = 2**20
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


@dataclasses.dataclass(frozen=True)
class Held:
    """A variable or constant that the step holds on to.

    Attributes:
        name: Its placeholder in the graph; empty where the step does not touch it.
        role: "weights", "optimizer", "gradients" (sums of them) or "other".
        shape: Its shape.
        dtype: Its type, by TensorFlow's name.
        path: As Keras calls it.
        value: A small constant's value, or that of a variable which is a single number.
        born: Whether the first step brings it along: it is not there before.
        taped: Whether TensorFlow's tapes watch it: they keep what is made with it.
    """

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    path: str
    value: Any = None
    born: bool = False
    taped: bool = False

    @property
    def nbytes(self) -> int:
        """Its size."""
        return int(np.prod(self.shape, dtype=np.int64)) * int(tf.as_dtype(self.dtype).size)


@dataclasses.dataclass(frozen=True)
class StepGraph:
    """A traced step.

    Attributes:
        graph: Its graph.
        function: The function that was made of it, which can be sent to another process.
        inputs: Name, shape and type of each part of a batch.
        held: What it captures, weights first, in the order of their creation.
        samples: The batch size that it was traced for; None for any.
        layers: The names of the model's layers.
        classes: For each part of a batch, the bound of whole numbers in it: below it, any can be
            looked up.
        jit_compile: Whether the step is compiled with XLA.
        method: "fit", "evaluate" or "predict".
        repeats: Updates of weights that were left out, because one just like each was traced.
    """

    graph: Any
    function: Any
    inputs: tuple[tuple[str, tuple[int | None, ...], str], ...]
    held: tuple[Held, ...]
    samples: int | None
    layers: tuple[str, ...]
    classes: tuple[int, ...]
    jit_compile: bool
    method: str
    repeats: tuple[Repeat, ...] = ()

    @property
    def input_bytes_per_sample(self) -> int:
        """What one sample of a batch takes."""
        return sum(
            int(np.prod(shape[1:], dtype=np.int64)) * max(1, tf.as_dtype(dtype).size)
            for _, shape, dtype in self.inputs
        )

    @property
    def gradient_ops(self) -> frozenset[str]:
        """The ops that make the gradients of weights: what others than gradients' ops read."""
        shapes = {held.shape for held in self.held if held.role == "weights"}
        found = set()
        for op in self.graph.get_operations():
            if role_of_op(op.name) == "gradient":
                continue
            for tensor in op.inputs:
                while tensor.op.type in ("Identity", "IdentityN"):
                    tensor = tensor.op.inputs[tensor.value_index]
                shape = tensor.shape
                if role_of_op(tensor.op.name) == "gradient" and shape.is_fully_defined():
                    found.update([tensor.op.name] if tuple(shape.as_list()) in shapes else [])
        return frozenset(found)

    def bytes_of(self, role: str) -> int:
        """What is held in a role."""
        return sum(held.nbytes for held in self.held if held.role == role)


def trace_step(
    model: Any,
    *,
    method: str = "fit",
    data: Any = None,
    length: int | None = None,
    samples: int | None = None,
    slice_of: int | None = None,
    repeats: bool = False,
    finish: Callable[[Any, Any], object] | None = None,
    compiled: bool = False,
) -> StepGraph:
    """Trace one step of a model.

    Args:
        model: A compiled Keras model.
        method: "fit", "evaluate" or "predict".
        data: A batch, as arrays, specs or a data set; None to read it off the model.
        length: What open axes of the inputs other than the first stand for.
        samples: A batch size to trace for; None leaves it open, as Keras does.
        slice_of: The size of a batch of which this is a slice: as the guard runs it, gradients are
            added up and not applied. None for a step as Keras runs it.
        repeats: Whether of updates that are alike only one is traced: quicker, but no graph that
            could be run.
        finish: Called with the graph and what the step returns, before the trace ends.
        compiled: Whether it is traced for XLA, which wants loops of a known length.

    Raises:
        UnsupportedModelError: If the model can't be traced, with TensorFlow's reason.
    """
    if method not in _STEPS:
        raise LegroomError(
            f"method must be 'fit', 'evaluate' or 'predict'. Received: method={method!r}"
        )
    check_model(model, method)
    first: Exception | None = None
    with untouched(model):
        for specs in batch_specs(model, method, data, length):
            if samples is not None:
                specs = tree.map_structure(
                    lambda spec: (
                        None
                        if spec is None
                        else tf.TensorSpec((samples, *spec.shape[1:]), spec.dtype)
                    ),
                    specs,
                )
            try:
                return _trace(model, method, specs, samples, slice_of, repeats, finish, compiled)
            except LegroomError:
                raise
            except Exception as error:
                first = first or error
    what = _COLOURS.sub("", str(first)).split()
    raise UnsupportedModelError(
        f"The {_STEPS[method]} of {model.name!r} can't be traced: {type(first).__name__}: "
        f"{' '.join(what)[:400]}\nIf the batch is not what it expects, show one: data=(x, y) as "
        "fit gets it."
    ) from first


def _trace(
    model: Any, method: str, specs: Any, samples: int | None, slice_of: int | None,
    repeats: bool, finish: Callable[[Any, Any], object] | None, compiled: bool,
) -> StepGraph:  # fmt: skip
    call = getattr(model, _STEPS[method])
    sums: list[Any] = []
    if slice_of is not None:
        call = functools.partial(add_up, call, slice_of / (samples or 1), sums)

    @tf.autograph.experimental.do_not_convert
    def step(data: Any) -> Any:
        outputs = model.distribute_strategy.run(call, args=(data,))
        if finish is not None:
            finish(tf.compat.v1.get_default_graph(), outputs)
        return outputs

    with contextlib.ExitStack() as stack:
        born = stack.enter_context(without_memory())
        dependencies = "tensorflow.python.framework.auto_control_deps"
        stack.enter_context(patches.replaced(dependencies, "_get_resource_inputs", _resources))
        for optimizer in _optimizers(model):
            if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
                # For a batch of a few samples it is too large in half precision, and where
                # gradients overflow no update is made.
                owner = LOSS_SCALE_OPTIMIZER
                stack.enter_context(patches.shadowed(optimizer, owner, "initial_scale", 1.0))
        repeated: list[Repeat] = []
        if repeats:
            repeated = stack.enter_context(repeating_updates())
            stack.enter_context(
                patches.replaced("tensorflow.python.util.tf_stack", "extract_stack", _one_line)
            )
        traced = own_function(step, compiled or None, specs).get_concrete_function()
        held = _held(model, traced, born, sums)
        if slice_of is not None:  # of steps that go on for long: none of them is the first
            held = [dataclasses.replace(item, born=False) for item in held]
    inputs = [tensor for tensor in traced.inputs if tensor.dtype != tf.resource]
    captured = {id(inner) for _, inner in traced.graph.captures}
    return StepGraph(
        graph=traced.graph,
        function=traced,
        inputs=tuple(
            (tensor.op.name, tuple(tensor.shape.as_list()), tensor.dtype.name)
            for tensor in inputs
            if id(tensor) not in captured
        ),
        held=tuple(held),
        samples=samples,
        layers=tuple(layer.name for layer in model._flatten_layers(include_self=False)),
        classes=tuple(_bounds(model, specs)),
        jit_compile=bool(model.jit_compile) and model.jit_compile != "auto",
        method=method,
        repeats=tuple(repeated),
    )


def _resources(original: Callable[..., Any]) -> Callable[..., Any]:
    """The resources that an op touches; TensorFlow asks each op, and takes long for most."""

    def resources(op: Any) -> Any:
        if any(tensor.dtype in (tf.resource, tf.variant) for tensor in op.inputs):
            return original(op)
        return ()

    return resources


def _one_line(original: Callable[..., Any]) -> Callable[..., Any]:
    """Where each op was made is told when it fails, and this graph is never run."""
    here = original()
    return lambda **_: here


def _held(model: Any, traced: Any, born: list[Any], sums: list[Any]) -> list[Held]:
    """Everything that stays in memory between steps, by role, and what else was captured."""
    roles: dict[int, tuple[str, str, Any]] = {}  # by handle
    for role, variables in (
        ("weights", model.variables),
        ("optimizer", [v for optimizer in _optimizers(model) for v in optimizer.variables]),
        ("other", model.metrics_variables),
    ):
        for variable in variables:
            value = getattr(variable, "value", variable)
            if hasattr(value, "handle"):
                roles.setdefault(id(value.handle), (role, variable.path, value))
    for variable in sums:
        roles[id(variable.handle)] = ("gradients", variable.name, variable)
    for variable in born:
        # A variable that nobody above knows: an inner optimizer's, or one made on the way.
        roles.setdefault(id(variable.handle), ("other", variable.name, variable))
    new = {id(variable.handle) for variable in born}
    held: dict[int, Held] = {
        handle: Held(
            "",
            role,
            tuple(value.shape.as_list()),
            value.dtype.name,
            path,
            None if handle in new else _number(value),
            born=handle in new,
            taped=bool(value.trainable),
        )
        for handle, (role, path, value) in roles.items()
    }
    for outer, inner in traced.graph.captures:
        name = inner.op.name
        if id(outer) in held:
            held[id(outer)] = dataclasses.replace(held[id(outer)], name=name)
        elif outer.dtype == tf.resource:
            held[id(outer)] = _captured_resource(outer, name, traced)
        else:
            small = outer.shape.num_elements() * max(1, outer.dtype.size) <= _SMALL
            held[id(outer)] = Held(
                name, "other", tuple(outer.shape.as_list()), outer.dtype.name, "constant",
                outer.numpy() if small else None,
            )  # fmt: skip
    return list(held.values())


def _optimizers(model: Any) -> list[Any]:
    return [thing for thing in vars(model).values() if isinstance(thing, keras.Optimizer)]


def _number(variable: Any) -> Any:
    """What a step that is tried needs to know of a variable that is a single number.

    Gradients are divided by the scale of a loss, and a learning rate that is too large ends in
    infinity: its own value, but no more than 1.
    """
    if variable.shape.rank == 0 and variable.dtype.is_floating:
        return np.minimum(variable.numpy(), 1.0)
    return None


def _captured_resource(handle: Any, name: str, traced: Any) -> Held:
    for variable in traced.graph.variables:
        if variable.handle is handle:
            return Held(name, "other", tuple(variable.shape.as_list()), variable.dtype.name,
                        variable.name)  # fmt: skip
    return Held(name, "other", (), "resource", handle.op.type if hasattr(handle, "op") else "")


def _bounds(model: Any, specs: Any) -> list[int]:
    """How large whole numbers in each part of a batch may be: what is looked up has to be there.

    Inputs are looked up in embeddings, and targets among the classes of an output. Where nothing
    is known, 0 and 1 are safe.
    """
    tables = [
        int(layer.input_dim)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.Embedding)
    ]
    outputs = getattr(getattr(model, "_functional", None) or model, "outputs", None) or []
    classes = [int(out.shape[-1]) for out in outputs if out.shape and out.shape[-1]]
    parts = specs if isinstance(specs, tuple) else (specs,)
    return [
        max(2, min(found, default=2))
        for number, part in enumerate(parts)
        for found in [classes if number == 1 else tables] * len(tree.flatten(part))
    ]
