"""A ``.keras`` file, read for its architecture: no weights are loaded, no code in it is run."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

from legroom.core.errors import UnsupportedModelError

__all__ = ["build_config", "read_config"]

_EXPECTED = 'Expected a file that model.save("m.keras") wrote.'
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


def build_config(config: dict[str, Any]) -> Any:
    """A model of a saved architecture, not compiled. No code in the file is run.

    Raises:
        UnsupportedModelError: If Keras can't build it.
    """
    import keras

    plain = {key: value for key, value in config.items() if key != "compile_config"}
    try:
        model = keras.saving.deserialize_keras_object(plain, safe_mode=True)
    except Exception as error:  # Keras raises whatever the classes in the file raise
        reason = _first_line(error)
        if "lambda" in str(error).lower():
            reason = "it has a Lambda layer, and code that is inside a file is not run."
        raise UnsupportedModelError(
            f"Keras can't build this model: {reason} A model with code of your own is explained "
            "where it is made: legroom.explain(error, model=model)."
        ) from error
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"It holds a {type(model).__name__}, which is no model. {_EXPECTED}"
        )
    return model


def _first_line(error: BaseException) -> str:
    words = " ".join(str(error).split())
    sentence = words.split(". ")[0].rstrip(".")
    return f"{sentence[:200]}." if sentence else f"{type(error).__name__}."
