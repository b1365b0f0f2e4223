"""What each layer of a model keeps for its gradient, and what running it again would cost.

Read off a forward pass without memory: layer by layer JAX is asked for its gradient, which is a
function that holds what it needs.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import keras
from keras import StatelessScope, tree

from legroom.backends import patches
from legroom.backends.jax.device.pool import default_pool
from legroom.backends.jax.step import batch
from legroom.backends.keras.recompute_blocks import functional_parts, run_nodes, runs_of
from legroom.backends.parts import FUNCTIONAL, LAYER
from legroom.core.aside import say_left_out
from legroom.core.traces import LayerCost

__all__ = ["read_costs", "step_costs"]

# Floating-point operations that take as long as one byte takes to be read or written.
_OPERATIONS_PER_BYTE = 12


def step_costs(
    model: Any, samples: int, data: Any = None, length: int | None = None
) -> tuple[list[LayerCost], bool]:
    """The layers of a model as a training step runs them, which changes nothing about it.

    Args:
        model: The model, built.
        samples: The number of samples in a batch.
        data: One batch or its specs, where the model alone does not tell what it is given.
        length: What open axes of the inputs other than the first stand for.

    Returns:
        The layers in order, of several models the largest's, and whether neighbours can be joined
        to a block; else each is one by itself. Nothing for a model that can't be called on its
        inputs alone, and nothing on a CPU: XLA computes there again at once, and keeps it all.
    """
    if default_pool().device.platform == "cpu":
        return [], False
    if (lacking := patches.missing("recompute")) is not None:
        say_left_out("nothing is recomputed", lacking)
        return [], False
    try:
        return read_costs(model, _inputs(model, samples, data, length))
    except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError):
        return [], False


def _inputs(model: Any, samples: int, data: Any, length: int | None) -> Any:
    """The shapes of what it is called with."""
    if data is not None:
        own = batch.batch_size(data)
        x, _, _ = keras.utils.unpack_x_y_sample_weight(data)
        return batch.map_leaves(lambda leaf: _shape_of(leaf, own, samples), x)
    return batch.map_leaves(
        lambda x: jax.ShapeDtypeStruct(
            tuple(samples if i == 0 else n or length or 1 for i, n in enumerate(x.shape)), x.dtype
        ),
        model.inputs if len(model.inputs) > 1 else model.inputs[0],
    )


def _shape_of(leaf: Any, own: int | None, samples: int) -> Any:
    shape = tuple(leaf.shape)
    if batch.leading(leaf) == own:
        shape = (samples, *shape[1:])
    return jax.ShapeDtypeStruct(shape, leaf.dtype)


def read_costs(model: Any, inputs: Any) -> tuple[list[LayerCost], bool]:
    """The same for inputs of these shapes, wherever it runs.

    Args:
        model: The model, built.
        inputs: The shapes.
    """
    parts = functional_parts(model)
    found: dict[int, _Layers] = {}

    def forward(state: Sequence[Any], x: Any) -> None:
        found.clear()
        scope = StatelessScope(list(zip(model.variables, state, strict=True)))
        with scope, _watching(model, parts, found):
            model(x, training=True)

    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in model.variables]
    jax.eval_shape(forward, shapes, inputs)
    rows = [layers.costs() for layers in found.values()]
    most = max(rows, key=lambda row: sum(cost.kept_bytes for cost in row), default=[])
    return most, bool(parts)


class _Layers:
    """The layers of one model, in the order in which they run.

    Arrays are told apart by themselves, so they are kept as long as layers come.
    """

    def __init__(self) -> None:
        self._rows: list[tuple[str, list[Any], list[Any], list[Any], float]] = []

    def run(
        self, name: str, incoming: list[Any], passed: list[Any], function: Callable[..., Any]
    ) -> Any:
        """Run a layer, and see what its gradient holds.

        Args:
            name: The layer's name.
            incoming: What comes in to it and to all after it from those before.
            passed: What it is called with, of that.
            function: The layer, as a function of this.
        """
        moving = [
            i for i, x in enumerate(passed) if jax.numpy.issubdtype(x.dtype, jax.numpy.inexact)
        ]

        def of_moving(given: list[Any]) -> Any:
            arrays = list(passed)
            for i, x in zip(moving, given, strict=True):
                arrays[i] = x
            return function(arrays)

        given = [passed[i] for i in moving]
        outputs, gradient = jax.vjp(of_moving, given)
        held = [x for x in jax.tree_util.tree_leaves(gradient) if isinstance(x, jax.Array)]
        work = _work(jax.make_jaxpr(function)(passed).jaxpr)
        self._rows.append((name, incoming, held, tree.flatten(outputs), work))
        return outputs

    def costs(self) -> list[LayerCost]:
        """What was seen."""
        read = {id(x) for _, _, held, _, _ in self._rows for x in held}
        made: set[int] = set()
        costs = []
        for name, incoming, held, outputs, work in self._rows:
            before = {id(x) for x in incoming} | made
            own = {id(x): x for x in [*held, *outputs] if id(x) in read and id(x) not in before}
            made |= {id(x) for x in outputs}
            costs.append(
                LayerCost(
                    name, _bytes(own.values()), _bytes(incoming), work,
                    _bytes(x for x in incoming if id(x) in read),
                )
            )  # fmt: skip
        return costs


@contextlib.contextmanager
def _watching(model: Any, parts: Sequence[Any], found: dict[int, _Layers]) -> Iterator[None]:
    """See each layer's call."""
    with contextlib.ExitStack() as hooks:
        for part in parts:
            run = functools.partial(_run_watched, part, found.setdefault(id(part), _Layers()))
            hooks.enter_context(patches.shadowed(part, FUNCTIONAL, "_run_through_graph", run))
        if not parts:
            layers = found.setdefault(id(model), _Layers())
            for layer in model._flatten_layers(recursive=False, include_self=False):
                call = functools.partial(_call_watched, layer.name, layer.call, layers)
                hooks.enter_context(patches.shadowed(layer, LAYER, "call", call))
        yield


def _run_watched(
    part: Any, layers: _Layers, inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None
) -> Any:
    tensors = dict(zip([id(x) for x in part.inputs], tree.flatten(inputs), strict=True))
    nodes = runs_of(part)
    for k, node in enumerate(nodes):
        later = {id(x) for other in nodes[k:] for x in other.input_tensors}
        incoming = [x for key, x in tensors.items() if key in later]
        needed = list({id(x): None for x in node.input_tensors})

        def run(given: list[Any], node: Any = node, needed: list[int] = needed) -> list[Any]:
            inner = dict(zip(needed, given, strict=True))
            run_nodes([node], inner, operation_fn)
            return [inner[id(x)] for x in node.outputs]

        made = layers.run(node.operation.name, incoming, [tensors[key] for key in needed], run)
        tensors.update(zip([id(x) for x in node.outputs], made, strict=True))
    return tree.pack_sequence_as(part._outputs_struct, [tensors[id(x)] for x in part.outputs])


def _call_watched(name: str, original: Any, layers: _Layers, *args: Any, **kwargs: Any) -> Any:
    leaves = tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]

    def run(given: list[Any]) -> Any:
        filled = list(leaves)
        for i, x in zip(places, given, strict=True):
            filled[i] = x
        inner_args, inner_kwargs = tree.pack_sequence_as((args, kwargs), filled)
        return original(*inner_args, **inner_kwargs)

    incoming = [leaves[i] for i in places]
    return layers.run(name, incoming, incoming, run)


def _bytes(arrays: Iterable[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in {id(x): x for x in arrays}.values())


def _work(jaxpr: Any) -> float:
    """The time that ops take, in bytes read and written."""
    work = 0.0
    for equation in jaxpr.eqns:
        inner = [p for p in map(_as_jaxpr, equation.params.values()) if p is not None]
        if inner:
            work += sum(map(_work, inner)) * equation.params.get("length", 1)
            continue
        shapes = [v.aval for v in (*equation.invars, *equation.outvars) if hasattr(v.aval, "shape")]
        work += sum(math.prod(x.shape) * x.dtype.itemsize for x in shapes)
        work += 2 * _multiplications(equation) / _OPERATIONS_PER_BYTE
    return work


def _as_jaxpr(value: Any) -> Any:
    value = getattr(value, "jaxpr", value)
    return value if hasattr(value, "eqns") else None


def _multiplications(equation: Any) -> int:
    made = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
    kind = equation.primitive.name
    if kind == "dot_general":
        (over, _), _ = equation.params["dimension_numbers"]
        return made * math.prod(equation.invars[0].aval.shape[axis] for axis in over)
    if kind == "conv_general_dilated":
        kernel = equation.invars[1].aval.shape
        channels = kernel[equation.params["dimension_numbers"].rhs_spec[0]]
        return made * math.prod(kernel) // channels
    return 0
