"""Where Keras's trainer asks for its functions: ours are handed to it there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from keras.src.backend.torch import trainer as keras_trainer

from legroom.backends.careful import Careful
from legroom.backends.keras.function_sets import switch
from legroom.backends.keras.trainer_patch import (
    Around,
    Guard,
    Manner,
    own_maker,
    put_on_trainer,
)
from legroom.backends.parts import TORCH_TRAINER
from legroom.backends.torch.step.participants import KerasModel
from legroom.backends.torch.step.step import Step
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["patch_trainer", "switch", "unguardable"]

_Trainer = keras_trainer.TorchTrainer


def patch_trainer(manner: Manner, guard: Guard, around: Around) -> None:
    """Hand Keras guarded functions for the models that are wanted.

    Args:
        manner: How a model is to be guarded, if it is.
        guard: Makes the runner of a model's step.
        around: Called around `fit` and its like.
    """

    def patch_epochs() -> None:
        from legroom.backends.torch.input.positions import patch_epochs

        patch_epochs()

    def making(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return _making(kind, manner, guard, original)

    put_on_trainer(__name__, TORCH_TRAINER, making, manner, around, patch_epochs)


def unguardable(model: Any) -> str | None:
    """Why a model's own functions have to be left alone, if they have to."""
    return own_maker(model, _Trainer)


def _making(
    kind: str, manner: Manner, guard: Guard, original: Callable[..., Any]
) -> Callable[..., Any]:
    attribute = f"{kind}_function"

    @functools.wraps(original)
    def make(self: Any, force: bool = False) -> Any:
        if getattr(self, attribute) is not None and not force:
            return getattr(self, attribute)
        how = manner(self)
        if how is None or unguardable(self) is not None or self.steps_per_execution > 1:
            return original(self, force)
        switch(self, how)
        if getattr(self, attribute) is None or force:
            original(self, force)  # which is what runs a whole batch, compiled or not
            setattr(self, attribute, _Function(self, kind, guard, getattr(self, attribute)))
        return getattr(self, attribute)

    return make


class _Function:
    """What stands in for a function that Keras's trainer has made.

    Args:
        model: The model.
        kind: "train", "test" or "predict".
        guard: Makes the runner of its step.
        own: Keras's function.
    """

    def __init__(self, model: Any, kind: str, guard: Any, own: Callable[[Any], Any]) -> None:
        self._model = model
        self._kind = kind
        self._guard = guard
        self._own = own
        self._run: Careful | None = None

    def __call__(self, data: Any) -> Any:
        """Run the step on a batch, which Keras hands over in a list."""
        if self._run is None:
            step = Step(
                self._call,
                getattr(self._model, f"{self._kind}_step"),
                KerasModel(self._model),
                trains=self._kind == "train",
                concatenates=self._kind == "predict",
                uncompiled=self._uncompiled if self._model.jit_compile else None,
            )
            guard = functools.partial(self._guard, self._model, self._kind)
            self._run = Careful(step, guard, self._say_unguarded)
        return self._run(data[0])

    def _call(self, batch: Any) -> Any:
        if self._kind == "train":
            return self._own([batch])
        with torch.no_grad():
            return self._own([batch])

    def _uncompiled(self, batch: Any) -> Any:
        step = getattr(self._model, f"{self._kind}_step")
        if self._kind == "train":
            return step(batch)
        with torch.no_grad():
            return step(batch)

    def _say_unguarded(self, error: BaseException) -> None:
        done = {"train": "trained", "test": "evaluated", "predict": "used for predictions"}
        say_left_out(
            f"{self._model.name} is {done[self._kind]} as Keras would, without legroom, because "
            "legroom itself failed (please report it)",
            in_a_line(error),
        )
