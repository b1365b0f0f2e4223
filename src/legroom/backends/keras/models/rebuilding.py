"""A model built again after a change of its architecture, with the weights it can keep."""

from __future__ import annotations

import contextlib
import warnings
import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import keras
import numpy as np

from legroom.backends.keras.models.leaner_changes import Change
from legroom.backends.keras.models.leaner_configs import NARROW
from legroom.backends.keras.models.reading import architecture, custom_classes, layer_facts

__all__ = [
    "changed_model",
    "compile_by_default",
    "compile_like",
    "compressed_bytes",
    "int8_model",
    "pruned_model",
    "rebuilt_model",
]


def changed_model(
    model: Any, change: Change, optimizer: Any = None
) -> tuple[Any, list[str]] | None:
    """A changed copy of a model, compiled as it is.

    Args:
        model: The model.
        change: The change of its architecture.
        optimizer: The optimizer of the copy; one like the model's own without it.

    Returns:
        The copy, and the layers whose weights begin anew; None where nothing was to be changed,
        or only the model's own code knows its architecture.
    """
    changed = rebuilt_model(model, change)
    if changed is None:
        return None
    compile_like(changed, model, optimizer)
    return changed, _carry_weights(model, changed)


def rebuilt_model(
    model: Any,
    change: Change,
    around: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext,
) -> Any:
    """The same with new weights in all layers, not compiled; None without a change.

    Args:
        model: The model, which is read before anything is made.
        change: The change of its architecture.
        around: What the new one is made in: it may give it no memory.
    """
    config = _changed_config(model, change)
    if config is None:
        return None
    plain = {key: value for key, value in config.items() if key != "compile_config"}
    classes = custom_classes(model)
    with around():
        return keras.saving.deserialize_keras_object(plain, custom_objects=classes, safe_mode=False)


def compile_by_default(model: Any, optimizer: Any = "adam") -> None:
    """Compile a model whose training is not known, so that it can be asked about."""
    last = getattr(model.layers[-1], "activation", None) if model.layers else None
    classes = last is keras.activations.softmax
    model.compile(optimizer, "sparse_categorical_crossentropy" if classes else "mse")


def int8_model(model: Any) -> tuple[Any, list[str]]:
    """A copy whose dense layers and embeddings hold whole numbers of 8 bits; for use, not training.

    Returns:
        The copy, and the layers that could be changed.
    """
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    before = {layer.name: _weight_types(layer) for layer in copy._flatten_layers()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Keras names every layer that it leaves as it is
        copy.quantize("int8")
    changed = [
        layer.name
        for layer in copy._flatten_layers(include_self=False)
        if not isinstance(layer, keras.Model) and _weight_types(layer) != before.get(layer.name)
    ]
    return copy, changed


def pruned_model(model: Any, share: float) -> Any:
    """A copy with zeros for the weights that are nearest to zero, matrix by matrix.

    Args:
        model: The model.
        share: How many of each matrix's weights.
    """
    copy = keras.models.clone_model(model)
    copy.set_weights([_pruned(weights, share) for weights in model.get_weights()])
    return copy


def compressed_bytes(model: Any) -> int:
    """What the weights take in a file that is compressed."""
    return sum(len(zlib.compress(weights.tobytes(), 1)) for weights in model.get_weights())


def _pruned(weights: Any, share: float) -> Any:
    if weights.ndim < 2 or not np.issubdtype(weights.dtype, np.floating):
        return weights  # biases, and statistics of normalizations
    sizes = np.abs(weights)
    return np.where(sizes < np.quantile(sizes, share), np.zeros_like(weights), weights)


def _weight_types(layer: Any) -> list[str]:
    return [str(weight.dtype) for weight in layer.weights]


def _changed_config(model: Any, change: Change) -> dict[str, Any] | None:
    config = architecture(model)
    return None if config is None else change(config, layer_facts(model))


def compile_like(changed: Any, model: Any, optimizer: Any = None) -> None:
    """Compile a changed model as the model is; with another optimizer where there is one."""
    own = getattr(model, "optimizer", None)
    if own is None:
        return
    fresh = optimizer or type(own).from_config(own.get_config())
    options = {"run_eagerly": model.run_eagerly, "jit_compile": model.jit_compile,
               "steps_per_execution": model.steps_per_execution}  # fmt: skip
    compiled = model.get_compile_config() or {}
    read = keras.saving.deserialize_keras_object
    try:
        parts = {
            name: read(compiled[name], custom_objects=custom_classes(model))
            for name in ("loss", "loss_weights", "metrics", "weighted_metrics")
            if compiled.get(name) is not None
        }
    except Exception:  # something of the user's own: the loss itself can be shared
        parts = {"loss": model.loss}
    changed.compile(fresh, **parts, **options)


def _carry_weights(model: Any, changed: Any) -> list[str]:
    """Copy the weights of layers that still have their shapes; the names of those that have not."""
    old = {layer.name: layer for layer in _leaves(model)}
    fresh = []
    for layer in _leaves(changed):
        if layer.name.endswith(NARROW):
            continue  # with the layer that it stands before
        source, narrow = old.get(layer.name), _narrow_of(layer, changed)
        if source is not None and narrow is not None:
            _split(source, narrow, layer)
        elif source is not None and _shapes(source) == _shapes(layer):
            layer.set_weights(source.get_weights())
        elif layer.weights:
            fresh.append(layer.name)
            _carry_bias(source, layer)
    return fresh


def _leaves(model: Any) -> list[Any]:
    return [
        layer
        for layer in model._flatten_layers(include_self=False)
        if not isinstance(layer, keras.Model)
    ]


def _shapes(layer: Any) -> list[tuple[int, ...]]:
    return [tuple(weight.shape) for weight in layer.weights]


def _narrow_of(layer: Any, model: Any) -> Any:
    name = layer.name + NARROW
    return next((one for one in _leaves(model) if one.name == name), None)


def _split(source: Any, narrow: Any, wide: Any) -> None:
    """The two matrices whose product is nearest to the one there was."""
    matrix, *rest = source.get_weights()
    left, strengths, right = np.linalg.svd(matrix.astype(np.float32), full_matrices=False)
    width = narrow.weights[0].shape[-1]
    roots = np.sqrt(strengths[:width])
    narrow.set_weights([left[:, :width] * roots])
    wide.set_weights([roots[:, None] * right[:width], *rest])


def _carry_bias(source: Any, layer: Any) -> None:
    bias, own = getattr(source, "bias", None), getattr(layer, "bias", None)
    if bias is not None and own is not None and bias.shape == own.shape:
        own.assign(bias)
