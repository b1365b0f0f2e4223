"""What each layer of a model keeps for its gradient, and what running it again would cost.

Read off a forward pass without memory: a tensor is kept if autograd saves it, and belongs to the
layer during whose call it was made.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import keras
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import flop_registry

from legroom.backends import patches
from legroom.backends.keras.models.layer_spans import Span, watching_layers
from legroom.backends.keras.recompute_blocks import functional_parts
from legroom.backends.torch.forecast.fakes import Imagined
from legroom.backends.torch.forecast.keras_step import batch_of, batch_specs, on_fakes
from legroom.core.aside import say_left_out
from legroom.core.traces import LayerCost

__all__ = ["step_costs"]

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
        inputs alone, or that is compiled: the compiler decides what is computed again.
    """
    if model.jit_compile:
        return [], False
    if (lacking := patches.missing("recompute")) is not None:
        say_left_out("nothing is recomputed", lacking)
        return [], False
    for specs in batch_specs(model, "fit", data, length):
        x, _, _ = keras.utils.unpack_x_y_sample_weight(specs)
        try:
            return _read_costs(model, x, samples)
        except (TypeError, ValueError, AttributeError, NotImplementedError, RuntimeError):
            return [], False
    return [], False


def _read_costs(model: Any, x: Any, samples: int) -> tuple[list[LayerCost], bool]:
    parts = functional_parts(model)
    spans: dict[int, list[Span]] = {}
    saved: dict[int, Any] = {}

    def save(tensor: Any) -> Any:
        saved[_key(tensor)] = tensor
        return tensor

    with on_fakes(model), torch.enable_grad(), _Ops() as ops:
        given = batch_of(x, samples)
        with (
            saved_tensors_hooks(save, lambda tensor: tensor),
            watching_layers(model, parts, spans, lambda: len(ops.made)),
        ):
            outputs = model(given, training=True)
        rows = [[_cost(span, ops, saved) for span in found] for found in spans.values()]
        del outputs
    most = max(rows, key=lambda row: sum(cost.kept_bytes for cost in row), default=[])
    return most, bool(parts)


def _cost(span: Span, ops: _Ops, saved: dict[int, Any]) -> LayerCost:
    made = {key: size for op in ops.made[span.start : span.stop] for key, size in op.items()}
    return LayerCost(
        span.name,
        sum(size for key, size in made.items() if key in saved),
        sum(_bytes(span.incoming).values()),
        sum(ops.work[span.start : span.stop]),
        sum(size for key, size in _bytes(span.incoming).items() if key in saved),
    )


class _Ops(Imagined):
    """The ops of a pass: the storages that each makes, with their bytes, and its time.

    Attributes:
        made: The storages, op by op.
        work: The time that each takes, in bytes read and written.
    """

    def __init__(self) -> None:
        super().__init__()
        self.made: list[dict[int, int]] = []
        self.work: list[float] = []
        self._known: dict[int, Any] = {}  # kept, so that no other storage comes to lie there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, and see what it makes."""
        outputs = super().__torch_dispatch__(func, types, args, kwargs)
        flat = outputs if isinstance(outputs, (list, tuple)) else (outputs,)
        new = [x for x in flat if isinstance(x, torch.Tensor) and _key(x) not in self._known]
        self._known.update({_key(x): x.untyped_storage() for x in new})
        self.made.append(_bytes(new))
        read = [x for x in args if isinstance(x, torch.Tensor)]
        work = float(sum(x.nbytes for x in [*read, *new])) if new else 0.0
        if (count := flop_registry.get(func.overloadpacket)) is not None:
            work += count(*args, **(kwargs or {}), out_val=outputs) / _OPERATIONS_PER_BYTE
        self.work.append(work)
        return outputs


def _key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _bytes(tensors: Iterable[Any]) -> dict[int, int]:
    """The bytes of the storages of tensors, each once."""
    return {_key(x): int(x.untyped_storage().nbytes()) for x in tensors}
