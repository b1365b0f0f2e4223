"""Models changed to be leaner: made, or only imagined, so that they can be asked about."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from legroom.backends.keras import leaner_changes, rebuilding
from legroom.backends.keras.leaner_changes import layer_of_change
from legroom.backends.keras.reading import architecture, layer_facts
from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.backends.tensorflow.recompute.eight_bits import wrapped
from legroom.core.errors import UnsupportedModelError
from legroom.messages.layers import LayerFacts

__all__ = [
    "askable",
    "changed_model",
    "halved_input",
    "imagined",
    "layer_of_change",
]


def changed_model(model: Any, change: str) -> tuple[Any, list[str]] | None:
    """A changed copy of a model, and the layers whose weights begin anew; None without a change."""
    return rebuilding.changed_model(model, _CHANGES[change], _optimizer(change))


@contextlib.contextmanager
def imagined(model: Any, change: str) -> Iterator[Any]:
    """The same for being asked about: without memory, and without a trace of it afterwards."""
    with untouched(model):
        with without_memory():
            changed = rebuilding.rebuilt_model(model, _CHANGES[change])
        if changed is not None:
            # With values: a probe runs the step with the optimizer's own learning rate.
            rebuilding.compile_like(changed, model, _optimizer(change))
        yield changed


@contextlib.contextmanager
def askable(model: Any) -> Iterator[Any]:
    """A model that is compiled: this one, or a copy of it without memory."""
    if getattr(model, "optimizer", None) is not None:
        yield model
        return
    with untouched(model):
        with without_memory():
            copy = rebuilding.rebuilt_model(model, lambda config, layers: config)
        if copy is None:
            raise UnsupportedModelError(
                f"{model.name!r} is not compiled, and what it is made of is known to its own code "
                "only. Compile it first."
            )
        rebuilding.compile_by_default(copy)
        yield copy


def halved_input(model: Any) -> str:
    """What a smaller input is, in words; empty where there is none."""
    config = architecture(model)
    return "" if config is None else leaner_changes.halved_input(config, layer_facts(model))


def _optimizer(change: str) -> Any:
    """The optimizer of the changed model; None for one like the model's own."""
    return keras.optimizers.SGD() if change == "sgd" else None


def _eight_bits(config: dict[str, Any], layers: Sequence[LayerFacts]) -> dict[str, Any] | None:
    """The same, with layers that keep their inputs in eight bits for the gradients."""
    changed = copy.deepcopy(config)
    own = changed["config"].get("layers") or []
    own[:] = new = [wrapped(layer) for layer in own]
    changed.pop("build_config", None)
    return changed if any(layer["class_name"] == "EightBits" for layer in new) else None


_CHANGES = {**leaner_changes.CHANGES, "eight_bits": _eight_bits}
