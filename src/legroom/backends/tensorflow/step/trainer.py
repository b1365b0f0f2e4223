"""Where Keras's trainer asks for its functions: ours are handed to it there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf
from keras import tree
from keras.src.backend.tensorflow import trainer as keras_trainer

from legroom.backends.careful import Careful
from legroom.backends.keras.function_sets import siblings, switch
from legroom.backends.keras.models.trainable import as_first_traced
from legroom.backends.keras.trainer_patch import (
    Around,
    Guard,
    Manner,
    own_maker,
    put_on_trainer,
)
from legroom.backends.parts import TRAINER
from legroom.backends.tensorflow.input.counted import Counted
from legroom.backends.tensorflow.input.data_end import DataEnd, keras_at_the_end
from legroom.backends.tensorflow.step.batch import concatenate
from legroom.backends.tensorflow.step.executions import Executions
from legroom.backends.tensorflow.step.step import Step
from legroom.backends.tensorflow.step.traits import Traits
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["patch_trainer", "switch", "unguardable"]

_Trainer = keras_trainer.TensorFlowTrainer


def patch_trainer(manner: Manner, guard: Guard, around: Around) -> None:
    """Hand Keras guarded functions for the models that are wanted.

    Args:
        manner: How a model is to be guarded, if it is.
        guard: Makes the runner of a model's step.
        around: Called around `fit` and its like.
    """

    def patch_epochs() -> None:
        from legroom.backends.tensorflow.input.positions import patch_epochs

        patch_epochs()

    def making(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return _making(kind, manner, guard, original)

    put_on_trainer(__name__, TRAINER, making, manner, around, patch_epochs)


def unguardable(model: Any) -> str | None:
    """Why a model's own functions have to be left alone, if they have to."""
    replicas = model.distribute_strategy.num_replicas_in_sync
    if replicas > 1:
        return f"it trains on {replicas} replicas at once"
    if isinstance(
        model.distribute_strategy,
        (tf.distribute.MultiWorkerMirroredStrategy, tf.distribute.TPUStrategy),
    ):
        return f"it trains under {type(model.distribute_strategy).__name__}"
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
        try:
            switch(self, how)
            if getattr(self, attribute) is not None and not force:
                return getattr(self, attribute)
            source = _Function(self, kind, guard)
        except Exception as error:
            _say_unguarded(self, kind, error)
            return original(self, force)
        setattr(self, attribute, source.predict if kind == "predict" else source)
        return getattr(self, attribute)

    return make


class _Runner(NamedTuple):
    """What runs a step on data of one kind."""

    spec: Any
    step: Step
    run: Careful
    executions: Executions


class _Function:
    """What stands in for a function that Keras's trainer would have made."""

    def __init__(self, model: Any, kind: str, guard: Guard) -> None:
        self._model = model
        self._kind = kind
        self._guard = guard
        self._runners: list[_Runner] = []
        self._end = DataEnd(model) if kind == "train" else None

    def __call__(self, iterator: Any) -> Any:
        """Take the batches of one execution from the iterator and run a step on each."""
        outputs, executed = None, 0
        runner = self._runner(getattr(iterator, "element_spec", None))
        if isinstance(iterator, Counted) and iterator.watch is not None:
            watch, iterator.watch = iterator.watch, None
            watch.first_batch(runner.step, runner.run, iterator)
            if self._end is not None:
                self._end = DataEnd(self._model)  # what it counts from was put back just now
        runner.executions.begin()
        while executed < self._model.steps_per_execution:
            ran = runner.executions.many(iterator, self._model.steps_per_execution - executed)
            executed += ran.steps
            self._count(ran.steps)
            if ran.error is not None:
                raise ran.error
            if ran.steps:
                outputs = ran.outputs
            if executed == self._model.steps_per_execution:
                break
            try:
                data = next(iterator) if ran.left is None else ran.left
            except (StopIteration, tf.errors.OutOfRangeError):
                forgets = False
                if isinstance(iterator, (tf.data.Iterator, Counted)):
                    forgets = self._take_end(executed)
                if executed == 0 or forgets:
                    raise StopIteration from None
                break
            outputs = runner.executions.one(_without_optionals(data))
            executed += 1
            self._count(1)
        return outputs

    def _count(self, steps: int) -> None:
        if self._end is not None:
            self._end.count(steps)

    def _take_end(self, executed: int) -> bool:
        """Do what Keras does where data ends; whether it forgets the steps that were executed."""
        try:
            if self._end is not None:
                self._end.reached()
            return executed > 0 and keras_at_the_end(self._model.steps_per_execution).forgets
        except Exception as error:
            self._end = None
            say_left_out(
                f"{self._model.name} may differ a little from plain Keras at the end of its epochs",
                in_a_line(error),
            )
            return False

    def predict(self, data: list[Any]) -> Any:
        """Run the predict step on each of the batches, and join what they give."""
        run = self._runner(None).run
        outputs = [run(_without_optionals(one)) for one in data]
        if len(outputs) == 1:
            return outputs[0]
        return tree.map_structure(lambda *parts: concatenate(parts), *outputs)

    def suspend(self) -> None:
        """The model runs in another manner from now on."""
        for runner in self._runners:
            runner.step.suspend()

    def drop_slices(self) -> None:
        """Hold no memory of the device at all, at the price of tracing slices again."""
        for runner in self._runners:
            runner.step.drop_slices()

    def resume(self) -> None:
        """The model runs in this manner again."""
        if self._end is not None:
            self._end = DataEnd(self._model)  # what it counts from was moved by others

    def step_for(self, spec: Any) -> Step | None:
        """The step for data of this spec, where there was such data."""
        return next((one.step for one in self._runners if _same(one.spec, spec)), None)

    def graphs(self) -> list[Any]:
        """The graphs of the steps that were run, one for each kind of data."""
        return [graph for one in self._runners for graph in one.step.graphs()]

    def _runner(self, spec: Any) -> _Runner:
        """The runner for data of this spec: a model may be fed by several sources in turn."""
        for runner in self._runners:
            if _same(runner.spec, spec):
                return runner
        step = self._traced_elsewhere(spec) or self._new_step(spec)
        run = Careful(
            step,
            functools.partial(self._guard, self._model, self._kind),
            functools.partial(_say_unguarded, self._model, self._kind),
        )
        self._runners.append(_Runner(spec, step, run, Executions(self._model.name, step, run)))
        return self._runners[-1]

    def _traced_elsewhere(self, spec: Any) -> Step | None:
        """The step as it was traced when the model ran in another manner."""
        for function in siblings(self._model, f"{self._kind}_function"):
            source = getattr(function, "__self__", function)
            step = source.step_for(spec) if isinstance(source, _Function) else None
            if step is not None:
                return step.sibling()
        return None

    def _new_step(self, spec: Any) -> Step:
        usable = spec if spec is not None and _plain(spec) else None
        model = self._model
        call = getattr(model, f"{self._kind}_step")
        eager = model.run_eagerly or tf.config.functions_run_eagerly()
        traits = Traits(
            call if eager else as_first_traced(model, call),
            strategy=model.distribute_strategy,
            eager=eager,
            jit_compile=model.jit_compile,
            trains=self._kind == "train",
            spec=usable,
            origin=call,
        )
        return Step(traits, model=model, concatenates=self._kind == "predict")


def _same(known: Any, spec: Any) -> bool:
    return known is spec or (known is not None and spec is not None and known == spec)


def _say_unguarded(model: Any, kind: str, error: BaseException) -> None:
    done = {"train": "trained", "test": "evaluated", "predict": "used for predictions"}[kind]
    say_left_out(
        f"{model.name} is {done} as Keras would, without legroom, because legroom itself failed "
        "(please report it)",
        in_a_line(error),
    )


def _plain(spec: Any) -> bool:
    """Whether a source's declared types can be traced for as they are."""
    return all(
        leaf is None or (isinstance(leaf, tf.TensorSpec) and leaf.shape.rank is not None)
        for leaf in tree.flatten(spec)
    )


def _without_optionals(data: Any) -> Any:
    """Batches as Keras's step sees them: tf.data's stand-ins for None are None again."""
    return tree.map_structure(
        lambda leaf: None if isinstance(leaf, tf.experimental.Optional) else leaf, data
    )
