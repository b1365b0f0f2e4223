"""A ``.keras`` file, read for its architecture: no weights are loaded, no code in it is run."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from legroom.core.errors import UnsupportedModelError

__all__ = ["build_config", "read_compiled", "read_config"]

_EXPECTED = 'Expected a file that model.save("m.keras") wrote.'
_WAITING = "uninitialized_variables"  # where Keras keeps variables that have no value yet
_LARGEST = 256 * 1024 * 1024  # of an architecture, which is text: a zip can promise any size


def read_config(path: Path) -> dict[str, Any]:
    """The architecture in a ``.keras`` file. Needs no Keras.

    Raises:
        UnsupportedModelError: If it is no such file, or a damaged one.
        OSError: If it can't be read.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.getinfo("config.json").file_size > _LARGEST:
                raise UnsupportedModelError(
                    f"Its architecture is too large. {_EXPECTED} Received: {str(path)!r}"
                )
            config = json.loads(archive.read("config.json"))
    except zipfile.BadZipFile as error:
        raise UnsupportedModelError(
            f"It is not a Keras model, or it is damaged ({error}). {_EXPECTED} "
            f"Received: {str(path)!r}"
        ) from error
    except (KeyError, ValueError, RecursionError, NotImplementedError, RuntimeError) as error:
        raise UnsupportedModelError(
            f"It holds no Keras model that can be read. {_EXPECTED} Received: {str(path)!r}"
        ) from error
    if not isinstance(config, dict) or not isinstance(config.get("config"), dict):
        raise UnsupportedModelError(
            f"It holds something other than a Keras model. {_EXPECTED} Received: {str(path)!r}"
        )
    return config


def build_config(config: dict[str, Any], *, safe: bool, custom: dict[str, Any]) -> Any:
    """A model of an architecture, with weights that have shapes and no values.

    Args:
        config: The architecture.
        safe: Whether Keras is to refuse code that is inside it.
        custom: Classes that are not Keras's own, by name.

    Raises:
        UnsupportedModelError: If Keras can't build it.
    """
    import keras
    from keras.src.backend.common import global_state

    waiting = list(global_state.get_global_attribute(_WAITING) or ())
    plain = {key: value for key, value in config.items() if key != "compile_config"}
    try:
        # Variables that are made in here wait for a value.
        with keras.StatelessScope(initialize_variables=False):
            model = keras.saving.deserialize_keras_object(
                plain, custom_objects=custom, safe_mode=safe
            )
    except Exception as error:  # Keras raises whatever the classes in the file raise
        reason = _first_line(error)
        if safe and "lambda" in str(error).lower():
            reason = "it has a Lambda layer, and code that is inside a file is not run."
        raise UnsupportedModelError(
            f"Keras can't build this model: {reason} A model with code of your own is explained "
            "where it is made: legroom.explain(error, model=model)."
        ) from error
    finally:
        # And never get one: Keras would make all that wait when the next such scope ends.
        global_state.set_global_attribute(_WAITING, waiting)
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"It holds a {type(model).__name__}, which is no model. {_EXPECTED}"
        )
    return model


def read_compiled(config: dict[str, Any]) -> tuple[Any, Any]:
    """The optimizer that a saved model was compiled with, and its loss; None where it has none."""
    import keras

    compiled = config.get("compile_config")
    if not isinstance(compiled, dict):
        return None, None
    try:
        optimizer = keras.optimizers.deserialize(compiled["optimizer"])
    except Exception:  # one of the user's own
        optimizer = None
    return optimizer, compiled.get("loss")


def _first_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    sentence = words.split(". ")[0].rstrip(".")
    return f"{sentence[:200]}." if sentence else f"{type(error).__name__}."
