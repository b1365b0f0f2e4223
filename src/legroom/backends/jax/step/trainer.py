"""Where Keras's trainer asks for its functions: ours are handed to it there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
from keras.src.backend import config
from keras.src.backend.jax import trainer as keras_trainer

from legroom.backends import patches
from legroom.backends.careful import Careful
from legroom.backends.jax.step import batch
from legroom.backends.jax.step.state import State
from legroom.backends.jax.step.step import Step
from legroom.backends.jax.step.uninterrupted import uninterrupted
from legroom.backends.keras.function_sets import switch
from legroom.backends.keras.trainer_patch import Around, Guard, Manner, own_maker, put_on_trainer
from legroom.backends.parts import JAX_TRAINER
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["patch_trainer", "switch", "unguardable"]

_Trainer = keras_trainer.JAXTrainer


def patch_trainer(manner: Manner, guard: Guard, around: Around) -> None:
    """Hand Keras guarded functions for the models that are wanted.

    Args:
        manner: How a model is to be guarded, if it is.
        guard: Makes the runner of a model's step.
        around: Called around `fit` and its like.
    """

    def patch_epochs() -> None:
        from legroom.backends.jax.input.positions import patch_epochs

        patch_epochs()

    def making(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return _making(kind, manner, guard, original)

    put_on_trainer(
        __name__, JAX_TRAINER, making, manner, functools.partial(_whole_again, around), patch_epochs
    )
    patches.put(__name__, JAX_TRAINER, "_get_jax_state", functools.partial(_handed_over, manner))


def _whole_again(around: Around, model: Any, name: str, call: Callable[[], Any]) -> Any:
    """Have a model's variables be its own again, however a call ends: Keras sees to it in `fit`."""
    try:
        return around(model, name, call)
    except BaseException:
        with uninterrupted():
            model.jax_state_sync()
        raise


def _handed_over(manner: Manner, original: Callable[..., Any]) -> Callable[..., Any]:
    """Keras takes the values from a model's variables, and keeps them on it after a first step.

    Ctrl-C in between would lose them all: they are kept at once.
    """

    @functools.wraps(original)
    def get(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args or manner(self) is None:
            return original(self, *args, **kwargs)
        with uninterrupted():
            state = original(self, **kwargs)
            if kwargs.get("purge_model_variables"):
                names = [name for name in State._fields if kwargs.get(name)]
                self._jax_state = dict(zip(names, state, strict=True))
                self._jax_state_synced = False
            elif self._jax_state_synced:
                self._jax_state = None  # of a step before, where the variables have theirs
        return state

    return get


def unguardable(model: Any) -> str | None:
    """Why a model's own functions have to be left alone, if they have to."""
    if getattr(config, "is_nnx_enabled", bool)():
        return "legroom does not know Keras in its NNX mode yet"
    if jax.process_count() > 1:
        return "it trains in several processes at once, which have to take the same steps"
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
        if how is None or unguardable(self) is not None:
            return original(self, force)
        switch(self, how)
        if getattr(self, attribute) is None or force:
            original(self, force)  # which runs where legroom can't
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

    def __init__(self, model: Any, kind: str, guard: Any, own: Callable[..., Any]) -> None:
        self._model = model
        self._kind = kind
        self._guard = guard
        self._own = own
        self._run: Careful | None = None
        self._step: Step | None = None
        self._handed: Any = None  # the state that Keras was given back

    def __call__(self, state: Any, iterator: Any) -> Any:
        """Run the step on the next batches, as many as make one execution."""
        if self._step is None or self._run is None:
            self._step = Step(self._model, self._kind, self._own)
            guard = functools.partial(self._guard, self._model, self._kind)
            self._run = Careful(self._step, guard, self._say_unguarded)
        if state is not self._handed:
            self._step.take(state)
        outputs = [self._run_next(iterator)]
        try:
            for _ in range(self._model.steps_per_execution - 1):
                outputs.append(self._run_next(iterator))
        except StopIteration:
            pass
        if self._kind == "predict" and len(outputs) > 1:
            leaves = zip(*map(batch.flatten, outputs), strict=True)
            joined = [batch.concatenate(parts) for parts in leaves]
            outputs = [batch.unflatten(outputs[0], joined)]
        self._handed = self._step.state
        return outputs[-1], self._handed

    def _run_next(self, iterator: Any) -> Any:
        data = next(iterator)
        assert self._step is not None
        assert self._run is not None
        if self._model._jax_state_synced:
            # Whoever made the batch has asked for the model's variables, or has put them back.
            self._step.take(self._taken_from_model())
        return self._run(data)

    def _taken_from_model(self) -> Any:
        trains = self._kind == "train"
        return self._model._get_jax_state(
            trainable_variables=True,
            non_trainable_variables=True,
            optimizer_variables=trains,
            metrics_variables=self._kind != "predict",
            purge_model_variables=True,
        )

    def _say_unguarded(self, error: BaseException) -> None:
        done = {"train": "trained", "test": "evaluated", "predict": "used for predictions"}
        say_left_out(
            f"{self._model.name} is {done[self._kind]} as Keras would, without legroom, because "
            "legroom itself failed (please report it)",
            in_a_line(error),
        )
