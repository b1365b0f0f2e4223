"""A training three times from the same numbers: plain, guarded whole, and guarded in slices."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

import legroom
from legroom.core.events import listening

RNG = np.random.default_rng(0)
N = 28  # batches of 16 and 12, slices of 5, 5, 5, 1 and 5, 5, 2
X = RNG.normal(size=(N, 8)).astype("float32")
LABELS = RNG.integers(0, 3, N)
VALUES = RNG.normal(size=(N, 1)).astype("float32")


def regressor(optimizer="adam", loss="mse", **compiling):
    """A small regression."""
    model = keras.Sequential(
        [keras.Input((8,)), layers.Dense(6, activation="tanh"), layers.Dense(1)]
    )
    model.compile(optimizer, loss, **compiling)
    return model


def relative(one, other) -> float:
    """The largest difference of two variables, on their own scale."""
    one, other = (np.asarray(value).astype(float) for value in (one, other))
    return float(np.abs(one - other).max(initial=0) / max(1e-3, np.abs(one).max(initial=0)))


def assert_same(plain, other, tolerance=1e-4) -> None:
    """Compare the variables of two trainings."""
    assert len(plain) == len(other)
    for one, two in zip(plain, other, strict=True):
        assert relative(one, two) <= tolerance, (one.name, relative(one, two))


def state_of(model) -> list:
    """All that a model's training changes."""
    found = list(model.variables)
    if model.optimizer is not None:
        found += model.optimizer.variables
    return found


def compare(
    build,
    *data,
    refused=None,
    changes=None,
    said=None,
    slice_size=5,
    tolerance=1e-4,
    fit=None,
    **fitting,
):
    """Train a model plain, guarded and sliced; all that it changes must come out the same.

    Args:
        build: Makes the model, compiled.
        *data: What it is fitted to.
        refused: A part of the sentence with which it runs whole although slices were asked for;
            None where slices must have run.
        changes: A part of the sentence that says what slices change, where they do; then the
            slices are not compared.
        said: A part of a sentence that says what slices may change, where it stays the same here.
        slice_size: The slices' size.
        tolerance: How far weights may be off.
        fit: Trains the model by any other means; called with the model and a `fit` function.
        **fitting: As for `fit`.
    """
    fitting = {"batch_size": 16, "epochs": 3, "verbose": 0, "shuffle": False, **fitting}
    states, histories = [], []
    for options in (None, {}, {"slice_size": slice_size}):
        keras.utils.set_random_seed(3)
        model = build()
        given = {key: value() if callable(value) else value for key, value in fitting.items()}

        def run(*args, options=options, model=model, given=given, **more):
            given = {**given, **more}
            if options is None:
                return model.fit(*(args or data), **given)
            return legroom.fit(model, *(args or data), **options, **given)

        histories.append(run() if fit is None else fit(model, run))
        states.append([np.array(variable) for variable in state_of(model)])
        names = [variable.path for variable in state_of(model)]
    compared = states[1:2] if changes else states[1:]
    for way, state in zip(("whole", "sliced"), compared, strict=False):
        assert len(state) == len(states[0])
        for name, one, other in zip(names, states[0], state, strict=True):
            assert relative(one, other) <= tolerance, (way, name, relative(one, other))
    for key, values in histories[0].history.items():
        np.testing.assert_allclose(values, histories[1].history[key], rtol=1e-3, atol=1e-6)
        if not changes:
            np.testing.assert_allclose(
                values, histories[2].history[key], rtol=1e-3, atol=1e-6, err_msg=key
            )
    _assert_ran(histories[2].legroom.events, refused, changes or said, slice_size)
    return histories[2]


def compare_loops(train, refused=None, slice_size=5, tolerance=1e-5) -> None:
    """Run a loop written by hand plain, guarded and sliced, and compare what it returns.

    Args:
        train: The loop, given a decorator for its step; returns the variables it has trained.
        refused: As for `compare`.
        slice_size: The slices' size.
        tolerance: How far variables may be off.
    """
    results = []
    for decorate in (lambda step: step, legroom.step, legroom.step(slice_size=slice_size)):
        keras.utils.set_random_seed(3)
        events = []
        with listening(events.append):
            results.append([np.array(variable) for variable in train(decorate)])
    for way, state in zip(("whole", "sliced"), results[1:], strict=True):
        assert len(state) == len(results[0])
        for i, (one, other) in enumerate(zip(results[0], state, strict=True)):
            assert relative(one, other) <= tolerance, (way, i, relative(one, other))
    _assert_ran(events, refused, None, slice_size)


def _assert_ran(events, refused, changes, slice_size) -> None:
    """Slices have run, or a sentence says why they have not."""
    notes = [event.text for event in events if event.name == "note"]
    sliced = [event.data["slice_size"] for event in events if event.name == "plan"]
    wanted = refused or changes
    if wanted:
        assert [wanted in note for note in notes] == [True], notes
    else:
        assert not notes, notes
    assert set(sliced) == (set() if refused else {slice_size}), (sliced, notes)
