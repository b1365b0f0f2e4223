"""Models changed to be leaner, or saved: made, or only imagined, to be asked about."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import keras

from legroom.backends.keras.models import leaner_changes, rebuilding
from legroom.backends.keras.models.leaner_changes import Change
from legroom.backends.keras.models.model_file import build_config
from legroom.backends.keras.models.reading import architecture, layer_facts
from legroom.core.errors import UnsupportedModelError
from legroom.messages.layers import LayerFacts

__all__ = ["LeanerModels", "imagined_model"]


def imagined_model(
    config: dict[str, Any],
    optimizer: Any,
    without_memory: Callable[[], AbstractContextManager[Any]],
) -> Any:
    """A model of a saved architecture, compiled, whose weights have no memory.

    Args:
        config: The architecture.
        optimizer: For one that was saved without.
        without_memory: Gives models that are made inside no memory.
    """
    with without_memory():
        model = build_config(config)
    try:
        model.compile_from_config(config["compile_config"])
    except Exception:  # it was not compiled, or with something of the user's own
        rebuilding.compile_by_default(model, optimizer)
    return model


class LeanerModels:
    """Changes of models, by their names.

    Args:
        untouched: Puts back what happens to models inside.
        without_memory: Gives models that are made inside no memory.
        changes: The framework's own changes, beside those that are Keras's on any of them.
    """

    def __init__(
        self,
        untouched: Callable[..., AbstractContextManager[None]],
        without_memory: Callable[[], AbstractContextManager[Any]],
        changes: Mapping[str, Change],
    ) -> None:
        self._untouched = untouched
        self._without_memory = without_memory
        self._changes = {**leaner_changes.CHANGES, **changes}

    def changed_model(self, model: Any, change: str) -> tuple[Any, list[str]] | None:
        """A changed copy, and the layers whose weights begin anew; None without a change."""
        if change not in self._changes:
            return None
        return rebuilding.changed_model(model, self._changes[change], _optimizer(change))

    @contextlib.contextmanager
    def imagined(self, model: Any, change: str) -> Iterator[Any]:
        """The same for being asked about: without memory, and without a trace of it afterwards."""
        if change not in self._changes:
            yield None
            return
        with self._untouched(model):
            change_of = self._changes[change]
            changed = rebuilding.rebuilt_model(model, change_of, self._without_memory)
            if changed is not None:
                # With values: a probe runs the step with the optimizer's own learning rate.
                rebuilding.compile_like(changed, model, _optimizer(change))
            yield changed

    @contextlib.contextmanager
    def askable(self, model: Any) -> Iterator[Any]:
        """A model that is compiled: this one, or a copy of it without memory."""
        if getattr(model, "optimizer", None) is not None:
            yield model
            return
        with self._untouched(model):
            copy = rebuilding.rebuilt_model(
                model, lambda config, layers: config, self._without_memory
            )
            if copy is None:
                raise UnsupportedModelError(
                    f"{model.name!r} is not compiled, and what it is made of is known to its own "
                    "code only. Compile it first."
                )
            rebuilding.compile_by_default(copy)
            yield copy

    def layer_of_change(self, change: str, layers: Sequence[LayerFacts]) -> str:
        """The layer that a change is about; empty where it is about the whole model."""
        return leaner_changes.layer_of_change(change, layers)

    def halved_input(self, model: Any) -> str:
        """What a smaller input is, in words; empty where there is none."""
        config = architecture(model)
        return "" if config is None else leaner_changes.halved_input(config, layer_facts(model))


def _optimizer(change: str) -> Any:
    """The optimizer of the changed model; None for one like the model's own."""
    return keras.optimizers.SGD() if change == "sgd" else None
