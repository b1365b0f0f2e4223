"""A step as the guard sees it: something that runs on a batch, whole or in slices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from legroom.backends import patches
from legroom.backends.jax.device import errors
from legroom.backends.jax.device.pool import default_pool
from legroom.backends.jax.slices.slice_run import SliceStep
from legroom.backends.jax.slices.sliced import Sliced
from legroom.backends.jax.slices.trial import Trial
from legroom.backends.jax.step import batch
from legroom.backends.jax.step.answers import Answers
from legroom.backends.jax.step.layout import laid_out, layouts_of
from legroom.backends.jax.step.needs import SlicedNeeds
from legroom.backends.jax.step.program import Program
from legroom.backends.jax.step.state import (
    State,
    as_attribute,
    as_state,
    as_tuple,
    refilled,
    variables_of,
    without_untouched,
)
from legroom.backends.jax.step.uninterrupted import uninterrupted
from legroom.backends.keras.slices.judge import is_seed
from legroom.backends.keras.slices.rules import Refused, Rules
from legroom.backends.steps import Needs
from legroom.core.aside import say_left_out
from legroom.core.errors import CannotFitError
from legroom.core.traces import LayerCost

__all__ = ["Step"]


class Step(Answers):
    """A training, test or predict step of a Keras model.

    Args:
        model: The model.
        kind: "train", "test" or "predict".
        own: Keras's function for it: given the state and an iterator.
    """

    def __init__(self, model: Any, kind: str, own: Callable[..., Any]) -> None:
        self._model = model
        self._kind = kind
        self._own = own
        self._step = SliceStep(model, kind)
        self._compiled = bool(model.jit_compile) and not model.run_eagerly
        self.pool = default_pool()
        self._make_programs()
        self._rules = Rules(concatenates=True) if kind == "predict" else None
        self._state: State | None = None
        self.done: list[Any] = []  # results of a run, for whom something fails behind it

    def _make_programs(self) -> None:
        # Weights that are trained have no other use than this step; those of others are kept.
        donates = (0,) if self._kind == "train" else ()
        self._whole = Program(
            self._run_whole, self.pool, donates, missed=True, compiled=self._compiled
        )
        self._sliced: Sliced | None = None

    def take(self, state: Any) -> None:
        """The state to begin with, as Keras has it.

        It is Keras's again at any moment: where an error or Ctrl-C ends a first step, Keras itself
        would have taken it from the model and lost it.
        """
        taken = as_state(self._kind, state)
        if self._step.layouts is None:
            self._step.layouts = layouts_of(taken)
        self._commit(taken)

    @property
    def state(self) -> Any:
        """The state now, as Keras wants it."""
        assert self._state is not None
        return as_tuple(self._kind, self._state)

    def _commit(self, state: State) -> None:
        self._state = state
        # Past Keras, which would look through all of it for layers and variables to track.
        object.__setattr__(self._model, "_jax_state", as_attribute(self._kind, state))
        object.__setattr__(self._model, "_jax_state_synced", False)

    def plain(self) -> Callable[[Any], Any]:
        """The step as it runs without legroom."""

        def run(data: Any) -> Any:
            with uninterrupted():
                outputs, state = self._own(self.state, iter([data]))
                if self.pool.fails_late():
                    jax.block_until_ready(state)
                self.take(state)
            return outputs

        return run

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch."""
        return batch.batch_size(data)

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run a batch in slices, or whole; out of memory means that nothing has happened."""
        samples = batch.batch_size(data)
        if slice_size is None or samples is None or slice_size >= samples:
            outputs = self._run_at_once(data)
        else:
            try:
                outputs = self._run_slices(data, samples, slice_size)
            except Refused as refusal:
                outputs = self._run_whole_after(data, samples, str(refusal))
        self.done.append(outputs)
        return outputs

    def _run_whole(self, state: State, data: Any) -> Any:
        outputs, after = self._step.whole(state, data)
        after = laid_out(after, self._step.layouts)
        return outputs, after if self._kind == "train" else without_untouched(state, after)

    def _run_at_once(self, data: Any) -> Any:
        assert self._state is not None
        key = batch.shapes(data)
        self._whole.needs(self._state, data, key=key)  # compiled where Ctrl-C still can stop it
        with uninterrupted():
            before = self._state
            outputs, state = self._whole(before, data, key=key)
            self._commit(state if self._kind == "train" else refilled(before, state))
        return outputs

    def _run_slices(self, data: Any, samples: int, size: int) -> Any:
        assert self._state is not None
        return self._in_slices(data).run(self._state, data, samples, size, self._commit)

    def _run_whole_after(self, data: Any, samples: int, why: str) -> Any:
        """Run a batch whole whose slices turned out not to make up its step."""
        try:
            outputs = self._run_at_once(data)
        except Exception as error:
            if not errors.is_oom(error):
                raise
        else:
            say_left_out("a batch runs whole, because it can't be sliced", why)
            return outputs
        raise CannotFitError(
            f"A batch of {samples} does not fit, and can't be run in slices: {why}. "
            "Use a smaller batch, or let the step do the same with each part of it."
        )

    def _in_slices(self, data: Any) -> Sliced:
        if self._sliced is None:
            variables = variables_of(self._kind, self._model).non_trainable_variables
            seeds = [i for i, variable in enumerate(variables) if is_seed(variable)]
            self._sliced = Sliced(
                self._step, self.rules(data), self.pool, seeds, compiled=self._compiled
            )
        return self._sliced

    # What the guard asks.

    def rules(self, data: Any) -> Rules:
        """Whether it may be sliced; found out on the first call."""
        if self._rules is None:
            if (lacking := patches.missing("slices")) is not None:
                self._rules = Rules(refusal=lacking)
            else:
                assert self._state is not None
                origin = getattr(self._model, f"{self._kind}_step")
                trial = Trial(self._step, origin, self._state, self.pool, compiled=self._compiled)
                self._rules = trial.find(data)
        return self._rules

    def needs(self, data: Any, free: int | None) -> Needs | None:
        """What it should need on batches like this, by XLA; None op by op."""
        samples = batch.batch_size(data)
        if not self._compiled or samples is None or self._state is None:
            return None
        whole = self._whole.needs(self._state, data, key=batch.shapes(data))
        if whole is None:
            return None
        fits = free is None or whole <= free
        rules = None if fits else self.rules(data)
        if rules is None or rules.refusal is not None:
            return SlicedNeeds(samples, whole)
        state = self._state

        def sliced(size: int) -> int | None:
            return self._in_slices(data).needs(state, data, samples, size)

        return SlicedNeeds(samples, whole, sliced)

    def layer_costs(self, data: Any) -> tuple[Sequence[LayerCost], bool]:
        """What layers keep for their gradients, in order, and whether neighbours form blocks."""
        samples = batch.batch_size(data)
        if self._kind != "train" or samples is None:
            return (), False
        from legroom.backends.jax.recompute.layer_costs import step_costs

        return step_costs(self._model, samples, data)

    def recompute(self, blocks: Sequence[Sequence[str]]) -> None:
        """Compute these blocks of layers again from now on, instead of keeping them."""
        from legroom.backends.keras.recompute_blocks import recompute_blocks

        recompute_blocks(self._model, blocks)
        self._make_programs()

    @property
    def broken_by_oom(self) -> bool:
        """Whether what the step was given is gone: then it can't be run again."""
        return self._state is not None and any(
            isinstance(x, jax.Array) and x.is_deleted() for part in self._state for x in part
        )
