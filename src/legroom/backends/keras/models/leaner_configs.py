"""Leaner versions of a model, made by changing its architecture as data.

Each takes the architecture of a sequential or functional model and returns another one, or None
where the change has nothing to change. Whether Keras can build it is found out by building it.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

__all__ = [
    "NARROW",
    "averaged_config",
    "fewer_units_config",
    "hashed_config",
    "narrow_config",
    "precision_config",
    "separable_config",
    "smaller_input_config",
]

_FULL = ("float32", "float64")
NARROW = "_narrow"  # behind the name of a layer, of the one that is put before it
_HASHED = "_hashed"


def precision_config(config: dict[str, Any], policy: str) -> dict[str, Any] | None:
    """The same, computing in half precision. Inputs and weights stay as they are."""
    changed, count = copy.deepcopy(config), 0
    for layer in _layers(changed):
        settings = layer["config"]
        if layer.get("class_name") == "InputLayer" or _policy(settings.get("dtype")) not in _FULL:
            continue
        settings["dtype"] = {
            "module": "keras",
            "class_name": "DTypePolicy",
            "config": {"name": policy},
            "registered_name": None,
        }
        count += 1
    return changed if count else None


def smaller_input_config(config: dict[str, Any], tokens: bool) -> tuple[dict[str, Any], str] | None:
    """The same on inputs of half the height and width, or of half the steps; and what was halved.

    Args:
        config: The architecture.
        tokens: Whether inputs of one axis are sequences, as those of an embedding are.
    """
    changed, told = copy.deepcopy(config), ""
    for layer in _layers(changed):
        if layer.get("class_name") != "InputLayer":
            layer.pop("build_config", None)  # shapes that no longer hold
            continue
        settings = layer["config"]
        shape = settings.get("batch_shape")
        if not isinstance(shape, (list, tuple)) or len(shape) < 2:
            continue
        space = _space(shape, tokens)
        if not space or any(not isinstance(shape[axis], int) or shape[axis] < 2 for axis in space):
            continue
        halved = [n // 2 if axis in space else n for axis, n in enumerate(shape)]
        before = " × ".join(str(shape[axis]) for axis in space)
        after = " × ".join(str(halved[axis]) for axis in space)
        told = told or f"{after} instead of {before}{' steps' if len(space) == 1 else ''}"
        settings["batch_shape"] = halved
    changed.pop("build_config", None)
    changed["config"].pop("build_input_shape", None)
    return (changed, told) if told else None


def averaged_config(config: dict[str, Any], ranks: dict[str, int]) -> dict[str, Any] | None:
    """The same with the average over all places where everything was flattened.

    Args:
        config: The architecture.
        ranks: The number of axes that each layer is called with, by name.
    """
    changed, count = copy.deepcopy(config), 0
    for layer in _layers(changed):
        settings = layer["config"]
        if layer.get("class_name") == "Flatten" and ranks.get(settings.get("name", "")) in (
            3,
            4,
            5,
        ):
            space = ranks[settings["name"]] - 2
            layer["class_name"] = f"GlobalAveragePooling{space}D"
            kept = {
                key: settings[key] for key in ("name", "dtype", "data_format") if key in settings
            }
            layer["config"] = kept
            count += 1
        layer.pop("build_config", None)
    changed.pop("build_config", None)
    return changed if count else None


def separable_config(config: dict[str, Any], names: Sequence[str]) -> dict[str, Any] | None:
    """The same with separable convolutions in the place of full ones.

    Args:
        config: The architecture.
        names: The convolutions.
    """
    changed, count = copy.deepcopy(config), 0
    for layer in _layers(changed):
        settings = layer["config"]
        layer.pop("build_config", None)
        if layer.get("class_name") != "Conv2D" or settings.get("name") not in names:
            continue
        layer["class_name"] = "SeparableConv2D"
        start = settings.pop("kernel_initializer", None)
        for name in ("groups", "kernel_regularizer", "kernel_constraint"):
            settings.pop(name, None)
        settings.update(depthwise_initializer=start, pointwise_initializer=start)
        count += 1
    changed.pop("build_config", None)
    return changed if count else None


def fewer_units_config(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The same with half the units of a dense layer."""
    changed, count = copy.deepcopy(config), 0
    for layer in _layers(changed):
        settings = layer["config"]
        layer.pop("build_config", None)
        if layer.get("class_name") == "Dense" and settings.get("name") == name:
            settings["units"] = max(1, settings["units"] // 2)
            count += 1
    changed.pop("build_config", None)
    return changed if count else None


def narrow_config(config: dict[str, Any], name: str, width: int) -> dict[str, Any] | None:
    """The same with a narrow layer before a dense one, or inside an embedding.

    Its large matrix becomes the product of two small ones: a layer of the same kind that makes few
    features, and a dense one of the old name that makes the old number of them.

    Args:
        config: The architecture.
        name: The layer, in the model itself and not in one inside it.
        width: How many features the narrow layer makes.
    """
    changed = copy.deepcopy(config)
    layer = _own_layer(changed, name)
    if layer is None or layer.get("class_name") not in ("Embedding", "Dense"):
        return None
    narrow, settings = copy.deepcopy(layer), layer["config"]
    if layer["class_name"] == "Embedding":
        narrow["config"].update(output_dim=width)
        layer["class_name"] = "Dense"
        kept = {key: settings[key] for key in ("name", "dtype", "trainable") if key in settings}
        layer["config"] = {**kept, "units": settings["output_dim"], "use_bias": False}
    else:
        linear = {"activation": "linear", "use_bias": False, "bias_regularizer": None}
        narrow["config"].update(units=width, **linear)
    narrow["config"]["name"] = name + NARROW
    return _put_before(changed, layer, narrow)


def hashed_config(config: dict[str, Any], name: str, rows: int) -> dict[str, Any] | None:
    """The same with fewer rows in an embedding, which several numbers share by their hash.

    Args:
        config: The architecture.
        name: The embedding, in the model itself and not in one inside it.
        rows: How many rows it keeps.
    """
    changed = copy.deepcopy(config)
    layer = _own_layer(changed, name)
    if layer is None:
        return None
    settings = layer["config"]
    masked = {"mask_value": 0} if settings.get("mask_zero") else {}
    hashing: dict[str, Any] = {
        "module": "keras.layers", "class_name": "Hashing", "registered_name": None,
        "config": {"name": name + _HASHED, "num_bins": rows, **masked},
    }  # fmt: skip
    settings["input_dim"] = rows
    return _put_before(changed, layer, hashing)


def _own_layer(config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """A layer of the model itself, by its name."""
    for layer in config["config"].get("layers") or ():
        settings = layer.get("config")
        if isinstance(settings, dict) and settings.get("name") == name:
            return layer
    return None


def _put_before(
    config: dict[str, Any], layer: dict[str, Any], other: dict[str, Any]
) -> dict[str, Any]:
    """Put another layer before one of the model's own, which reads what that makes."""
    name = other["config"]["name"]
    if "name" in layer:  # of functional models
        other["name"] = name
        other["inbound_nodes"] = layer["inbound_nodes"]
        layer["inbound_nodes"] = [
            {"args": [_tensor(name, number)], "kwargs": {}}
            for number in range(len(layer["inbound_nodes"] or ()))
        ]
    layers = config["config"]["layers"]
    layers.insert(next(i for i, one in enumerate(layers) if one is layer), other)
    for one in _layers(config):
        one.pop("build_config", None)
    config.pop("build_config", None)
    return config


def _tensor(layer: str, number: int) -> dict[str, Any]:
    """What a layer makes at one of its calls, as an architecture refers to it."""
    where = {"shape": [None], "dtype": "float32", "keras_history": [layer, number, 0]}
    return {"class_name": "__keras_tensor__", "config": where}


def _layers(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All layers of an architecture, those of models inside it included."""
    inner = config.get("config")
    if not isinstance(inner, dict):
        return
    for layer in inner.get("layers") or ():
        if isinstance(layer, dict) and isinstance(layer.get("config"), dict):
            if isinstance(layer["config"].get("layers"), list):
                yield from _layers(layer)
            else:
                yield layer


def _policy(dtype: Any) -> str | None:
    if isinstance(dtype, dict):
        dtype = (dtype.get("config") or {}).get("name")
    return dtype if isinstance(dtype, str) else None


def _space(shape: Sequence[Any], tokens: bool) -> list[int]:
    """The axes that stand for places: height and width, or steps."""
    if len(shape) == 2:
        return [1] if tokens else []
    # Channels are few and stand at an end; pictures with channels in front are rare.
    first = len(shape) > 3 and isinstance(shape[1], int) and shape[1] <= 4 and shape[-1] != shape[1]
    return list(range(2, len(shape))) if first else list(range(1, len(shape) - 1))
