"""What is asked of models in a process that has not imported Keras: there are none.

A step in plain PyTorch can be asked about there. Importing Keras for that would bring whatever
framework it is set to.
"""

from __future__ import annotations

from typing import Any, NoReturn

from legroom.core.errors import UnsupportedModelError

__all__ = ["check_model", "data_identity", "identity"]


def identity(model: Any) -> None:
    """What makes two steps the same to ask about: the user's own code decides."""


def data_identity(data: Any) -> None:
    """The same of data."""


def check_model(model: Any, method: str) -> NoReturn:
    """See that a model is one that can be asked about."""
    raise UnsupportedModelError(
        f"Expected a compiled keras.Model. Received: {type(model).__module__}."
        f"{type(model).__qualname__}. Of a step in plain PyTorch, ask for "
        "legroom.estimate(step, batch_size, data=(x, y))."
    )
