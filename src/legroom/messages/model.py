"""A case with the model at hand: which layer it was, what the axes are, how large the batch was."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from legroom.messages.case import Case
from legroom.messages.diagnosis import Remedy
from legroom.messages.layers import LayerFacts, NamedTensor, named_tensor, named_weight
from legroom.messages.reading.ops import match_layer, role_of_op

__all__ = ["Advice", "ModelAtHand", "Tie", "tie"]


@dataclasses.dataclass(frozen=True)
class Advice:
    """What is predicted of a model at a batch size.

    Attributes:
        sentence: What a step needs, in words; empty where it can't be told.
        remedies: What to do, each with what it is predicted to save.
    """

    sentence: str = ""
    remedies: tuple[Remedy, ...] = ()


class ModelAtHand(Protocol):
    """What a diagnosis asks of a model."""

    @property
    def title(self) -> str:
        """How the model is called in sentences: ``m.keras``, or its own name."""
        ...

    @property
    def layers(self) -> Sequence[LayerFacts]:
        """Its layers, inner ones of nested models included."""
        ...

    @property
    def batch_size(self) -> int | None:
        """The batch it is trained with, where the user said so."""
        ...

    def advise(self, batch: int | None, limit_bytes: int | None, device: str | None) -> Advice:
        """Predict what a step needs and what would save how much."""
        ...


@dataclasses.dataclass(frozen=True)
class Tie:
    """How a case hangs together with a model.

    Attributes:
        title: How the model is called in sentences.
        layer: The layer that asked; None where it can't be told.
        tensor: The tensor that was asked for, recognised by its shape.
        batch: The number of samples.
        missing: The layer that the message names and the model does not have.
        alike: A layer that makes a tensor of this shape, where the one named is missing.
    """

    title: str
    layer: LayerFacts | None = None
    tensor: NamedTensor | None = None
    batch: int | None = None
    missing: str | None = None
    alike: LayerFacts | None = None


def tie(case: Case, model: ModelAtHand) -> Tie:
    """Tie the op of a case to a layer of a model, and its tensor to one of the layer's."""
    facts = case.facts
    shape = facts.shape
    if shape is None and case.cause is not None and len(case.cause.arguments) == 1:
        shape = case.cause.arguments[0][0]  # what Keras says that the layer was called with
    role = role_of_op(facts.op) if facts.op else None
    if facts.op == "_EagerConst" or role == "input":
        return Tie(model.title, batch=model.batch_size)  # data on its way in: no layer asked
    if role == "optimizer":
        weights = [named_weight(layer, shape) for layer in model.layers if shape]
        return _by_shape(model, [one for one in weights if one is not None])
    layers = {layer.name: layer for layer in model.layers}
    name = facts.layer if facts.layer in layers else None
    name = name or match_layer(facts.op, layers) or match_layer(facts.layer, layers)
    if name is not None:
        tensor = named_tensor(layers[name], shape) if shape else None
        # "conv2d_3" may be the second call of "conv2d", or a layer of another model: where the
        # name was not the layer's own, its shape must be.
        if tensor or not shape or name == facts.layer or name in (facts.op or "").split("/"):
            batch = tensor.batch if tensor and tensor.batch else model.batch_size
            return Tie(model.title, layers[name], tensor, batch)
    # Keras names the class of the layer that it was calling, not always its name.
    alike = [layer for layer in model.layers if layer.kind == facts.layer]
    tensors = [
        named_tensor(layer, shape, model.batch_size)
        for layer in alike or model.layers
        if shape and len(shape) > 1
    ]
    fitting = [one for one in tensors if one is not None]
    # What the forward pass allocates is what a layer makes, not what it is called with.
    made = [one for one in fitting if one.what == "output" and role != "gradient"]
    found = _by_shape(model, made or fitting)
    if len(alike) == 1 and found.layer is None:
        return dataclasses.replace(found, layer=alike[0])
    if facts.layer is not None and not alike:
        return Tie(model.title, None, None, model.batch_size, facts.layer, found.layer)
    return found


def _by_shape(model: ModelAtHand, found: list[NamedTensor]) -> Tie:
    """The only layer that has such a tensor; of several, what they have in common."""
    batches = {one.batch for one in found}
    batch = batches.pop() if len(batches) == 1 else None
    if len(found) != 1:
        return Tie(model.title, batch=batch or model.batch_size)
    return Tie(model.title, found[0].layer, found[0], batch or model.batch_size)
