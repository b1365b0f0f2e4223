"""The changes that make a model leaner, by name: which of its layers each of them is about.

What each does, and what it is good for, is told where it is proposed; how an architecture is
changed is the subject of `leaner_configs`. Pure.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from legroom.backends.keras.models import leaner_configs
from legroom.messages.layers import LayerFacts

__all__ = ["CHANGES", "Change", "halved_input", "layer_of_change"]

_Config: TypeAlias = dict[str, Any]
_Layers: TypeAlias = Sequence[LayerFacts]
# From an architecture, and the model's layers, to another one; None where there is nothing to do.
Change: TypeAlias = Callable[[_Config, _Layers], _Config | None]

_FEW_ROWS = 400  # of an embedding: less is not worth being shared


def halved_input(config: _Config, layers: _Layers) -> str:
    """What a smaller input is, in words, as "16 × 16 instead of 32 × 32"; empty without one."""
    made = leaner_configs.smaller_input_config(config, _takes_tokens(layers))
    return "" if made is None else made[1]


def layer_of_change(change: str, layers: _Layers) -> str:
    """The layer that a change is about; empty where it is about the whole model."""
    layer = _ABOUT[change](layers) if change in _ABOUT else None
    return "" if layer is None else layer.name


def _averaged(config: _Config, layers: _Layers) -> _Config | None:
    ranks = {layer.name: len(layer.inputs[0]) for layer in layers if layer.inputs}
    return leaner_configs.averaged_config(config, ranks)


def _separable(config: _Config, layers: _Layers) -> _Config | None:
    return leaner_configs.separable_config(config, [one.name for one in layers if _full(one)])


def _full(layer: LayerFacts) -> bool:
    """Whether it is a convolution that is worth being taken apart: a window, many channels."""
    kernel = _matrix(layer)
    return layer.kind == "Conv2D" and len(kernel) == 4 and kernel[0] > 1 and kernel[2] >= 16


def _narrowed(config: _Config, layers: _Layers, kind: str) -> _Config | None:
    layer = _heaviest(layers, kind)
    if layer is None or len(_matrix(layer)) != 2:
        return None
    width = min(_matrix(layer)) // 4
    return None if width < 4 else leaner_configs.narrow_config(config, layer.name, width)


def _hashed(config: _Config, layers: _Layers) -> _Config | None:
    layer = _heaviest(layers, "Embedding")
    if layer is None or _matrix(layer)[0] < _FEW_ROWS:
        return None
    return leaner_configs.hashed_config(config, layer.name, _matrix(layer)[0] // 4)


def _fewer_units(config: _Config, layers: _Layers) -> _Config | None:
    layer = _widest_inner(layers)
    return None if layer is None else leaner_configs.fewer_units_config(config, layer.name)


def _smaller_input(config: _Config, layers: _Layers) -> _Config | None:
    made = leaner_configs.smaller_input_config(config, _takes_tokens(layers))
    return None if made is None else made[0]


def _half(config: _Config, layers: _Layers, policy: str) -> _Config | None:
    return leaner_configs.precision_config(config, policy)


def _takes_tokens(layers: _Layers) -> bool:
    """Whether an input of one axis is a sequence, to be looked up in an embedding."""
    return any(layer.kind == "Embedding" for layer in layers)


def _matrix(layer: LayerFacts) -> tuple[int, ...]:
    return max((shape for _, shape in layer.weights), key=math.prod, default=())


def _heaviest(layers: _Layers, kind: str) -> LayerFacts | None:
    of_kind = [layer for layer in layers if layer.kind == kind and _matrix(layer)]
    return max(of_kind, key=lambda layer: math.prod(_matrix(layer)), default=None)


def _widest_inner(layers: _Layers) -> LayerFacts | None:
    """The heaviest dense layer that is not the model's last one: those units are classes."""
    last = max((k for k, layer in enumerate(layers) if layer.kind == "Dense"), default=-1)
    return _heaviest([layer for k, layer in enumerate(layers) if k != last], "Dense")


def _flat(layers: _Layers) -> LayerFacts | None:
    return next((layer for layer in layers if layer.kind == "Flatten"), None)


CHANGES: dict[str, Change] = {
    "average_pooling": _averaged,
    "separable": _separable,
    "factorized_embedding": functools.partial(_narrowed, kind="Embedding"),
    "hashed_embedding": _hashed,
    "bottleneck": functools.partial(_narrowed, kind="Dense"),
    "fewer_units": _fewer_units,
    "smaller_input": _smaller_input,
    "bfloat16": functools.partial(_half, policy="mixed_bfloat16"),
    "float16": functools.partial(_half, policy="mixed_float16"),
    "sgd": lambda config, layers: config,  # another optimizer is all
}
_ABOUT: dict[str, Callable[[_Layers], LayerFacts | None]] = {
    "average_pooling": _flat,
    "factorized_embedding": functools.partial(_heaviest, kind="Embedding"),
    "hashed_embedding": functools.partial(_heaviest, kind="Embedding"),
    "bottleneck": functools.partial(_heaviest, kind="Dense"),
    "fewer_units": _widest_inner,
}
