"""Which models are guarded, and how: those that were named, or all of them."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Hashable, Iterator
from typing import Any

from legroom.backends.base import current
from legroom.backends.steps import BackendStep
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.events import Note, emit
from legroom.guarding import wording
from legroom.guarding.options import GuardOptions
from legroom.guarding.resuming.attempts import Attempts
from legroom.guarding.retrying.guarded_step import GuardedStep
from legroom.guarding.session import Session, report_at_exit, terminal
from legroom.guarding.showing.foresight import foresight
from legroom.snapshots.run import current_run

__all__ = ["Registry", "registry", "supervised"]

_SUBJECTS = {"train": "batch", "test": "evaluation batch", "predict": "prediction batch"}


class Registry:
    """The models to be guarded. One for each process, because Keras's classes are shared by it."""

    def __init__(self) -> None:
        self._options: weakref.WeakKeyDictionary[Any, GuardOptions] = weakref.WeakKeyDictionary()
        self._everything: GuardOptions | None = None

    def add(self, model: Any, options: GuardOptions) -> None:
        """Guard a model from now on."""
        if _patch_backend():
            self._options[model] = options
            current().trainer.switch(model, self.manner(model))

    def remove(self, model: Any) -> None:
        """Leave a model to Keras again, or to what holds for every model."""
        if self._options.pop(model, None) is not None:
            current().trainer.switch(model, self.manner(model))

    @contextlib.contextmanager
    def guarding(self, model: Any, options: GuardOptions) -> Iterator[None]:
        """Guard a model for a while."""
        before = self._options.get(model)
        self.add(model, options)
        try:
            yield
        finally:
            if before is None:
                self.remove(model)
            else:
                self.add(model, before)

    def clear(self) -> None:
        """Guard nothing any more."""
        self._options.clear()
        self._everything = None

    def add_everything(self, options: GuardOptions) -> None:
        """Guard every model of this process from now on."""
        if _patch_backend():
            self._everything = options

    def options(self, model: Any) -> GuardOptions | None:
        """How a model is guarded; None if it is not."""
        return self._options.get(model, self._everything)

    @property
    def guards_everything(self) -> bool:
        """Whether every model of this process is guarded."""
        return self._everything is not None

    def manner(self, model: Any) -> Hashable:
        """How a model is guarded, as its functions are kept by; None if it is not."""
        options = self.options(model)
        # In a run that can be resumed, steps write down what they try.
        return None if options is None else (options, current_run() is not None)

    def guard(self, model: Any, kind: str, step: BackendStep) -> GuardedStep:
        """Make the guarded runner of one of a model's steps."""
        options = self.options(model)
        assert options is not None
        if kind != "train":
            options = dataclasses.replace(options, start=None)  # a plan is one for training
        guarded = supervised(step, options, _SUBJECTS[kind])
        if kind == "train":
            guarded.on_first_batch = foresight.of(model)
        Session.of(model).watch(guarded)
        return report_at_exit(guarded)

    def around(self, model: Any, method: str, call: Any) -> Any:
        """Run one of Keras's methods for a guarded model."""
        trainer = current().trainer
        reason = trainer.unguardable(model)
        if reason is not None:
            return Session.of(model).run_unguarded(model.name, reason, call)
        trainer.switch(model, self.manner(model))
        if method == "fit":
            foresight.look_at_input(call)
        return Session.of(model).run(method, model, call)


def supervised(step: BackendStep, options: GuardOptions, subject: str = "batch") -> GuardedStep:
    """Guard a step; in a run that can be resumed, with what earlier processes died of in mind."""
    run = current_run()
    if run is None:
        return GuardedStep(step, options, subject)
    if run.training is None and subject == _SUBJECTS["train"] and not run.said_from_top:
        run.said_from_top = True
        emit(Note(wording.starts_from_top()))
    attempts = Attempts(step, subject)
    guarded = attempts.guarded = GuardedStep(attempts, options, subject)
    if run.tried:
        guarded.begin_whole()
    guarded.begin_call(run.training)
    return guarded


registry = Registry()


def _patch_backend() -> bool:
    """Take our place in Keras's trainer, where it is not taken yet; whether that is possible.

    Raises:
        UnsupportedModelError: If Keras runs on a backend that legroom does not know yet.
    """
    import keras  # noqa: F401  (which knows its backend then)

    backend = current()
    from legroom.backends import patches

    lacking = patches.missing("guard")
    if lacking is None:
        try:
            backend.trainer.patch_trainer(registry.manner, registry.guard, registry.around)
            patches.switch_on()
            return True
        except Exception as error:
            lacking = in_a_line(error)
    with terminal():
        say_left_out("every training runs as Keras would, without legroom", lacking)
    return False
