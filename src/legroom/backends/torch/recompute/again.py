"""Running a part of a model again for its gradients, instead of keeping what it computed.

PyTorch's own checkpointing does it, and sees to its generators. Of what Keras keeps it knows
nothing. So the second run sees all variables as they were before the first: seeds, statistics,
whatever layers hold beside their weights; and what it writes is dropped.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from keras import StatelessScope, tree
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from legroom.backends import patches
from legroom.backends.keras.models.call_context import CallContext
from legroom.backends.parts import VARIABLE

__all__ = ["run_recomputed"]


def run_recomputed(
    body: Callable[[Sequence[Any]], Any],
    inputs: Sequence[Any],
    layers: Sequence[Any],
    *,
    compiled: bool = False,
) -> Any:
    """Run a body now, and once more when its gradients are asked for.

    Args:
        body: A function of a list of tensors, to a structure of tensors.
        inputs: The tensors. A Keras mask on one of them is passed on with it.
        layers: The layers that the body calls.
        compiled: Whether `torch.compile` makes one program of this. It decides by itself what it
            computes again, and nothing is done here.
    """
    if compiled or not torch.is_grad_enabled():
        return body(inputs)
    run = _Run(body, inputs, layers)
    fake = any(isinstance(x, FakeTensor) for x in inputs)
    # An early stop is an exception in the middle of a layer, which Keras would make another one of.
    with set_checkpoint_early_stop(False):
        return checkpoint(
            run,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=not fake,  # fake tensors draw nothing, and have no state to keep
            context_fn=lambda: (run.first(), run.second()),
        )


class _Run:
    """A body, and what its repetition needs."""

    def __init__(
        self, body: Callable[[Sequence[Any]], Any], inputs: Sequence[Any], layers: Sequence[Any]
    ) -> None:
        self._body = body
        self._masks = [getattr(x, "_keras_mask", None) for x in inputs]
        self._layers = list(dict.fromkeys(part for x in layers for part in x._flatten_layers()))
        self._context = CallContext()
        self._before: dict[int, tuple[Any, Any]] = {}

    def __call__(self, *inputs: Any) -> Any:
        """Run the body."""
        for x, mask in zip(inputs, self._masks, strict=True):
            if mask is not None:
                x._keras_mask = mask  # the second run's tensors are others
        outputs = self._body(inputs)
        return tree.map_structure(lambda y: y, outputs)

    @contextlib.contextmanager
    def first(self) -> Iterator[None]:
        """Keep what is written, as it was."""

        def noting(original: Callable[..., Any]) -> Callable[..., Any]:
            def assign(variable: Any, value: Any) -> Any:
                if id(variable) not in self._before:
                    self._before[id(variable)] = variable, _kept(variable._value)
                return original(variable, value)

            return assign

        with patches.replaced(VARIABLE, "assign", noting):
            yield

    @contextlib.contextmanager
    def second(self) -> Iterator[None]:
        """Show what the first run found, and drop what this one writes."""
        losses = [(layer, list(layer._losses)) for layer in self._layers]
        buffers = [
            (buffer, buffer.detach().clone())
            for layer in self._layers
            for buffer in layer.buffers(recurse=False)
        ]
        scope = StatelessScope(list(self._before.values()), initialize_variables=False)
        try:
            with self._context.in_force(), scope:
                yield
        finally:
            for layer, had in losses:
                layer._losses[:] = had
            for buffer, value in buffers:
                buffer.data.copy_(value)  # which autograd is not told of


def _kept(tensor: Any) -> Any:
    """A copy that autograd treats as it treats the tensor."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)
