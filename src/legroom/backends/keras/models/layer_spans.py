"""During which layer's call things happen: the layers of a model in the order in which they run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras import ops, tree

from legroom.backends import patches
from legroom.backends.keras.recompute_blocks import run_nodes, runs_of
from legroom.backends.parts import FUNCTIONAL, LAYER

__all__ = ["Span", "watching_layers"]


class Span:
    """What happened during one layer's call, and the tensors that come in.

    Args:
        name: The layer's name.
        start: Where a count stood before it.
        stop: Where it stood after.
        incoming: What comes in to it and to all after it from those before.
    """

    def __init__(self, name: str, start: int, stop: int, incoming: Sequence[Any]) -> None:
        self.name, self.start, self.stop, self.incoming = name, start, stop, incoming


@contextlib.contextmanager
def watching_layers(
    model: Any, parts: Sequence[Any], spans: dict[int, list[Span]], count: Callable[[], int]
) -> Iterator[None]:
    """Note where a count stands before and after each layer's call.

    Args:
        model: The model.
        parts: The models in it that run their layers one after the other, as `functional_parts`
            tells; without one, its layers are watched by themselves.
        spans: Gets the layers, by the id of the part that they belong to.
        count: Tells where the count stands.
    """
    with contextlib.ExitStack() as hooks:
        for part in parts:
            found = spans.setdefault(id(part), [])
            found.clear()
            run = _watched_run(part, found, count)
            hooks.enter_context(patches.shadowed(part, FUNCTIONAL, "_run_through_graph", run))
        if not parts:
            found = spans.setdefault(id(model), [])
            found.clear()
            for layer in model._flatten_layers(recursive=False, include_self=False):
                call = _watched_call(layer, found, count)
                hooks.enter_context(patches.shadowed(layer, LAYER, "call", call))
        yield


def _watched_run(part: Any, found: list[Span], count: Callable[[], int]) -> Callable[..., Any]:
    def run(inputs: Any, operation_fn: Any = lambda op: op, call_fn: Any = None) -> Any:
        tensors = dict(zip([id(x) for x in part.inputs], tree.flatten(inputs), strict=True))
        nodes = runs_of(part)
        for k, node in enumerate(nodes):
            later = {id(x) for other in nodes[k:] for x in other.input_tensors}
            incoming = [x for key, x in tensors.items() if key in later]
            start = count()
            run_nodes([node], tensors, operation_fn)
            found.append(Span(node.operation.name, start, count(), incoming))
        outputs = [tensors[id(x)] for x in part.outputs]
        return tree.pack_sequence_as(part._outputs_struct, outputs)

    return run


def _watched_call(layer: Any, found: list[Span], count: Callable[[], int]) -> Callable[..., Any]:
    original = layer.call

    def call(*args: Any, **kwargs: Any) -> Any:
        start = count()
        outputs = original(*args, **kwargs)
        incoming = [x for x in tree.flatten((args, kwargs)) if ops.is_tensor(x)]
        found.append(Span(layer.name, start, count(), incoming))
        return outputs

    return call
