"""The changes that make a model leaner: what each does, by its name. Pure, on architectures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from legroom.messages.layers import LayerFacts

__all__ = ["CHANGES", "PRUNED_SHARE", "SlimChange"]

PRUNED_SHARE = 0.5  # of the weights, those nearest to zero
_FEW_ROWS = 400  # of an embedding: less is not worth being shared


@dataclasses.dataclass(frozen=True)
class SlimChange:
    """A change.

    Attributes:
        id: The finding that proposes it.
        text: What it does, in a sentence.
        make: From an architecture and the model's layers to another one; None where there is
            nothing to do.
        place: The layer it is about, or an empty text.
    """

    id: str
    text: str
    make: Callable[[dict[str, Any], list[LayerFacts]], dict[str, Any] | None]
    place: Callable[[list[LayerFacts]], str] = lambda layers: ""


def _averaged(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import averaged_config

    return averaged_config(
        config, {layer.name: len(layer.inputs[0]) for layer in layers if layer.inputs}
    )


def _separable(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import separable_config

    return separable_config(config, [layer.name for layer in layers if _full(layer)])


def _full(layer: LayerFacts) -> bool:
    """Whether it is a convolution that is worth being taken apart: a window, many channels."""
    kernel = _matrix(layer)
    return layer.kind == "Conv2D" and len(kernel) == 4 and kernel[0] > 1 and kernel[2] >= 16


def _narrow_embedding(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    return _narrowed(config, _heaviest(layers, "Embedding"))


def _hashed_embedding(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import hashed_config

    layer = _heaviest(layers, "Embedding")
    if layer is None or _matrix(layer)[0] < _FEW_ROWS:
        return None
    return hashed_config(config, layer.name, _matrix(layer)[0] // 4)


def _narrow_dense(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    return _narrowed(config, _heaviest(layers, "Dense"))


def _narrowed(config: dict[str, Any], layer: LayerFacts | None) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import narrow_config

    if layer is None or len(_matrix(layer)) != 2:
        return None
    width = min(_matrix(layer)) // 4
    return None if width < 4 else narrow_config(config, layer.name, width)


def _fewer_units(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import fewer_units_config

    layer = _widest_inner(layers)
    return None if layer is None else fewer_units_config(config, layer.name)


def _smaller_input(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import smaller_input_config

    made = smaller_input_config(config, any(layer.kind == "Embedding" for layer in layers))
    return None if made is None else made[0]


def _half(policy: str) -> Callable[[dict[str, Any], list[LayerFacts]], dict[str, Any] | None]:
    def make(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
        from legroom.backends.tensorflow.models.leaner_configs import precision_config

        return precision_config(config, policy)

    return make


def _eight_bits(config: dict[str, Any], layers: list[LayerFacts]) -> dict[str, Any] | None:
    from legroom.backends.tensorflow.models.leaner_configs import eight_bits_config

    return eight_bits_config(config)


def _matrix(layer: LayerFacts) -> tuple[int, ...]:
    return max((shape for _, shape in layer.weights), key=math.prod, default=())


def _heaviest(layers: list[LayerFacts], kind: str) -> LayerFacts | None:
    of_kind = [layer for layer in layers if layer.kind == kind and _matrix(layer)]
    return max(of_kind, key=lambda layer: math.prod(_matrix(layer)), default=None)


def _widest_inner(layers: list[LayerFacts]) -> LayerFacts | None:
    """The heaviest dense layer that is not the model's last one: those units are classes."""
    last = max((k for k, layer in enumerate(layers) if layer.kind == "Dense"), default=-1)
    return _heaviest([layer for k, layer in enumerate(layers) if k != last], "Dense")


def _named(find: Callable[[list[LayerFacts]], LayerFacts | None]) -> Callable[..., str]:
    def place(layers: list[LayerFacts]) -> str:
        layer = find(layers)
        return "" if layer is None else layer.name

    return place


def _flat(layers: list[LayerFacts]) -> LayerFacts | None:
    return next((layer for layer in layers if layer.kind == "Flatten"), None)


CHANGES = {
    "average_pooling": SlimChange(
        "LR301", "An average over all places instead of Flatten, so that the dense layer behind it "
        "needs one weight for each channel, and not for each pixel of it.",
        _averaged, _named(_flat),
    ),
    "separable": SlimChange(
        "LR302", "Separable convolutions instead of full ones: each channel by itself, then a "
        "mixture of channels.", _separable,
    ),
    "factorized_embedding": SlimChange(
        "LR303", "A quarter of the features in the embedding, and a dense layer that makes the old "
        "number out of them.", _narrow_embedding, _named(lambda ls: _heaviest(ls, "Embedding")),
    ),
    "hashed_embedding": SlimChange(
        "LR303", "A quarter of the rows in the embedding, found by a hash of the number, so that "
        "several words share one.", _hashed_embedding,
        _named(lambda ls: _heaviest(ls, "Embedding")),
    ),
    "bottleneck": SlimChange(
        "LR304", "A narrow layer before the heaviest dense one: two small matrices instead of a "
        "large one.", _narrow_dense, _named(lambda ls: _heaviest(ls, "Dense")),
    ),
    "fewer_units": SlimChange(
        "LR305", "Half the units in the heaviest dense layer.", _fewer_units,
        _named(_widest_inner),
    ),
    "smaller_input": SlimChange(
        "LR306", "Inputs of half the height and width, or of half the length.", _smaller_input,
    ),
    "bfloat16": SlimChange(
        "LR307", "Computing in bfloat16; weights stay float32.", _half("mixed_bfloat16"),
    ),
    "float16": SlimChange(
        "LR307", "Computing in float16, with a scaled loss; weights stay float32.",
        _half("mixed_float16"),
    ),
    "sgd": SlimChange(
        "LR308", "SGD, which keeps nothing beside the weights.", lambda config, layers: config,
    ),
    "eight_bits": SlimChange(
        "LR310", "What layers keep for their gradients in eight bits, and each of them run once "
        "more in the backward pass.", _eight_bits,
    ),
}  # fmt: skip
