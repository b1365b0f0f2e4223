"""What makes two models the same to whoever asks about their steps, as text."""

from __future__ import annotations

import importlib.util
import json
import sys
from typing import Any

import keras

__all__ = ["data_identity", "identity", "identity_without_tensorflow"]

# Keras wraps these itself, for every layer; the guard puts itself into the third.
_WRAPPED = frozenset(("build", "quantize", "make_train_function"))


def identity(model: Any) -> str | None:
    """Architecture, names and the arguments of `compile`; no values.

    None where code of the user's own has a part in the step: it may be other code tomorrow, under
    the same name.
    """
    if not type(model).__module__.startswith("keras.") or _is_changed(model):
        return None
    try:
        config = keras.saving.serialize_keras_object(model)
        # Optimizers are numbered in a process, and nothing else depends on the name.
        optimizer = (config.get("compile_config") or {}).get("optimizer")
        if isinstance(optimizer, dict):
            optimizer["config"].pop("name", None)
        text = json.dumps(config, sort_keys=True)
    except Exception:  # what can't be saved has code or values that no text stands for
        return None
    return text if _is_all_of_keras(config) else None


def identity_without_tensorflow(model: Any) -> str | None:
    """The same; None also where Keras would import TensorFlow to write it down.

    It looks for TensorFlow's types as soon as it finds it installed, and that takes longer than to
    answer again.
    """
    if "tensorflow" not in sys.modules and importlib.util.find_spec("tensorflow") is not None:
        return None
    return identity(model)


def _is_changed(model: Any) -> bool:
    """Whether a method was replaced, of the model itself or of a part: `model.train_step = …`."""
    return any(
        callable(value) and name not in _WRAPPED and callable(getattr(type(inner), name, None))
        for part in model._flatten_layers()
        for inner in (part, getattr(part, "_functional", None))
        if inner is not None
        for name, value in vars(inner).items()
    )


def _is_all_of_keras(config: Any) -> bool:
    if isinstance(config, dict):
        name = config.get("class_name")
        if isinstance(name, str) and not _is_known(name, config.get("module")):
            return False
        return all(map(_is_all_of_keras, config.values()))
    return not isinstance(config, (list, tuple)) or all(map(_is_all_of_keras, config))


def _is_known(name: str, module: Any) -> bool:
    """Whether a class is Keras's own, or stands for plain data: tuples, types, arrays."""
    if name.startswith("__"):
        return name != "__lambda__"
    return isinstance(module, str) and module.split(".")[0] == "keras"


def data_identity(data: Any) -> str | None:
    """Structure, shapes and types of data to ask with; None where they are not known."""
    if data is None:
        return ""
    leaves = keras.tree.flatten(data)
    if not all(hasattr(leaf, "shape") and hasattr(leaf, "dtype") for leaf in leaves):
        return None
    described = [f"{tuple(leaf.shape)} {leaf.dtype}" for leaf in leaves]
    return str(keras.tree.pack_sequence_as(data, described))
