"""Which parts of a model are recomputed: blocks of layers, in the order in which they run.

A functional or sequential model runs its layers one after the other, so a block of neighbours runs
as one function of the tensors that come in to the tensors that go out, and only those are kept.
Any other model is opened layer by layer: a layer is a block by itself.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops, tree
from keras.src.models.functional import Functional

from legroom.backends import patches
from legroom.backends.base import current
from legroom.backends.parts import FUNCTIONAL, LAYER
from legroom.core.errors import UnsupportedModelError

__all__ = [
    "block_order",
    "functional_parts",
    "keep_everything",
    "put_blocks",
    "recompute_blocks",
    "recomputing",
    "run_nodes",
    "runs_of",
    "take_blocks",
]

_OURS = "_legroom_recomputes"
# What is no dense tensor of its own: such layers are left alone.
_OTHER_TENSORS = ("IndexedSlices", "RaggedTensor", "ResourceVariable", "SparseTensor")


def block_order(model: Any) -> list[list[str]]:
    """The layers that may be put in blocks, in the order in which they run.

    Returns:
        One list for each chain of neighbours: blocks are made of neighbours of one chain.
    """
    if patches.missing("recompute") is None and (parts := functional_parts(model)):
        return [[node.operation.name for node in runs_of(part)] for part in parts]
    return [[layer.name] for layer in model._flatten_layers(recursive=False, include_self=False)]


def recompute_blocks(model: Any, blocks: Sequence[Sequence[str]]) -> None:
    """Recompute these blocks of a model from now on, instead of keeping what they compute.

    What was traced before stays as it is: the caller makes the model's functions anew.

    Args:
        model: The model, built.
        blocks: Names of layers, each list a block of neighbours.

    Raises:
        UnsupportedModelError: If a layer is not there.
    """
    keep_everything(model)
    block_of = {name: number for number, block in enumerate(blocks) for name in block}
    missing = set(block_of)
    for part in functional_parts(model):
        names = {node.operation.name for node in runs_of(part)}
        if names & set(block_of):
            missing -= names
            run = functools.partial(_run_in_blocks, part, block_of, _compiles(model))
            patches.set_on(part, FUNCTIONAL, "_run_through_graph", run)
            object.__setattr__(part, _OURS, "_run_through_graph")
    for layer in model._flatten_layers(include_self=False):
        if layer.name in missing:
            missing.discard(layer.name)
            call = functools.partial(_call_recomputed, layer, layer.call, _compiles(model))
            patches.set_on(layer, LAYER, "call", call)
            object.__setattr__(layer, _OURS, "call")
    if missing:
        raise UnsupportedModelError(
            f"The model {model.name} has no layer of that name. Received: {sorted(missing)}"
        )


def keep_everything(model: Any) -> None:
    """Recompute nothing any more."""
    for part in {id(x): x for x in [*model._flatten_layers(), *functional_parts(model)]}.values():
        ours = vars(part).get(_OURS)
        if ours is not None:
            object.__delattr__(part, ours)
            object.__delattr__(part, _OURS)


def take_blocks(model: Any) -> list[tuple[Any, str, Any]]:
    """Recompute nothing any more; returns what `put_blocks` needs to recompute it again."""
    parts = {id(x): x for x in [*model._flatten_layers(), *functional_parts(model)]}.values()
    taken = [
        (part, name, vars(part)[name])
        for part in parts
        if _OURS in vars(part)
        for name in (vars(part)[_OURS], _OURS)
    ]
    keep_everything(model)
    return taken


def put_blocks(taken: Sequence[tuple[Any, str, Any]]) -> None:
    """Recompute what was recomputed before."""
    for part, name, value in taken:
        object.__setattr__(part, name, value)


@contextlib.contextmanager
def recomputing(model: Any, blocks: Sequence[Sequence[str]]) -> Iterator[None]:
    """Recompute these blocks, and no others, for a while."""
    before = take_blocks(model)
    try:
        if blocks:
            recompute_blocks(model, blocks)
        yield
    finally:
        keep_everything(model)
        put_blocks(before)


def functional_parts(model: Any) -> list[Any]:
    """The models, in a model and including it, that run their layers one after the other."""
    parts = {}
    for part in model._flatten_layers():
        if isinstance(part, keras.Sequential):
            part = getattr(part, "_functional", None)
        if isinstance(part, Functional):
            parts[id(part)] = part
    return list(parts.values())


def runs_of(functional: Any) -> list[Any]:
    """A functional model's calls of its layers, in the order in which Keras runs them."""
    by_depth = functional._nodes_by_depth
    return [
        node
        for depth in sorted(by_depth, reverse=True)
        for node in by_depth[depth]
        if node.operation and not node.is_input
    ]


def _compiles(model: Any) -> bool:
    return bool(getattr(model, "jit_compile", False))


def _run_in_blocks(
    functional: Any,
    block_of: dict[str, int],
    compiled: bool,
    inputs: Any,
    operation_fn: Any = lambda operation: operation,
    call_fn: Any = None,
) -> Any:
    """What `Functional._run_through_graph` does, block by block."""
    flat = tree.flatten(inputs)
    if call_fn is not None or not all(ops.is_tensor(x) for x in flat):
        run = type(functional)._run_through_graph
        return run(functional, inputs, operation_fn, call_fn)
    tensors: dict[int, Any] = dict(zip([id(x) for x in functional.inputs], flat, strict=True))
    segments = _segments(runs_of(functional), block_of)
    for k, (recomputed, nodes) in enumerate(segments):
        if not recomputed:
            run_nodes(nodes, tensors, operation_fn)
            continue
        made = {id(x) for node in nodes for x in node.outputs}
        needed = {id(x) for node in nodes for x in node.input_tensors} - made
        later = {id(x) for _, other in segments[k + 1 :] for n in other for x in n.input_tensors}
        later |= {id(x) for x in functional.outputs}
        taken, given = sorted(needed), sorted(made & later)

        def body(
            values: Sequence[Any],
            nodes: Any = nodes,
            taken: Any = taken,
            given: Any = given,
        ) -> list[Any]:
            inner = dict(zip(taken, values, strict=True))
            run_nodes(nodes, inner, operation_fn)
            return [inner[key] for key in given]

        layers = [n.operation for n in nodes if isinstance(n.operation, keras.layers.Layer)]
        given_in = [tensors[key] for key in taken]
        results = current().recompute.run_recomputed(body, given_in, layers, compiled=compiled)
        tensors.update(zip(given, results, strict=True))
    return tree.pack_sequence_as(
        functional._outputs_struct, [tensors[id(x)] for x in functional.outputs]
    )


def _segments(nodes: Sequence[Any], block_of: dict[str, int]) -> list[tuple[bool, list[Any]]]:
    """The calls in runs of the same block; those of no block are not recomputed."""
    segments: list[tuple[bool, list[Any]]] = []
    last: int | None = -1
    for node in nodes:
        block = block_of.get(node.operation.name)
        if block != last:
            segments.append((block is not None, []))
            last = block
        segments[-1][1].append(node)
    return segments


def run_nodes(nodes: Sequence[Any], tensors: dict[int, Any], operation_fn: Any) -> None:
    """Call layers one after the other; `tensors` has what they take, and gets what they give."""
    for node in nodes:
        args, kwargs = node.arguments.fill_in(tensors)
        outputs = operation_fn(node.operation)(*args, **kwargs)
        for reference, value in zip(node.outputs, tree.flatten(outputs), strict=False):
            tensors[id(reference)] = value


def _call_recomputed(layer: Any, original: Any, compiled: bool, *args: Any, **kwargs: Any) -> Any:
    """A layer's own `call`, recomputed; what is no tensor is passed as it is."""
    leaves = tree.flatten((args, kwargs))
    places = [i for i, leaf in enumerate(leaves) if ops.is_tensor(leaf)]
    if not places or any(type(leaves[i]).__name__ in _OTHER_TENSORS for i in places):
        return original(*args, **kwargs)

    def body(tensors: Sequence[Any]) -> Any:
        filled = list(leaves)
        for i, tensor in zip(places, tensors, strict=True):
            filled[i] = tensor
        inner_args, inner_kwargs = tree.pack_sequence_as((args, kwargs), filled)
        return original(*inner_args, **inner_kwargs)

    tensors = [leaves[i] for i in places]
    return current().recompute.run_recomputed(body, tensors, [layer], compiled=compiled)
