"""KerasTuner: trials that run in processes of their own, and fail by themselves.

import keras_tuner
from legroom.integrations.keras_tuner import isolated

tuner = keras_tuner.RandomSearch(build_model, objective="val_loss", max_trials=40)
with isolated(tuner, memory="8GiB"):
    tuner.search(x, y, epochs=5, validation_data=(x_val, y_val))
"""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterator
from typing import Any

from legroom.core.errors import LegroomError
from legroom.sweeps.opening import Settings
from legroom.sweeps.pool import TrialPool

__all__ = ["isolated"]


@contextlib.contextmanager
def isolated(
    tuner: Any,
    *,
    memory: str | int | None = None,
    folder: str | os.PathLike[str] | None = None,
    time_limit: float | None = None,
    exact: bool = False,
    seed: int = 0,
) -> Iterator[Any]:
    """Have a tuner run each of its trials in a process of its own, guarded and capped.

    A trial that does not fit fails with KerasTuner's `FailedTrialError` and the reason, and the
    search goes on; so does it when a trial's process dies. When a trial has ended, all of its
    memory is free again. Weights, checkpoints and TensorBoard logs are where they always are.

    Args:
        tuner: The tuner: any of KerasTuner's, or one of your own.
        memory: What a trial may take, as in `legroom.sweep`.
        folder: Where logs and journals are kept; in the tuner's own folder by default.
        time_limit: Seconds after which a trial is ended.
        exact: Never slice what slices would change.
        seed: What the seeds of the trials are made of.
    """
    place = folder if folder is not None else os.path.join(tuner.project_dir, "legroom")
    settings = Settings(memory, 1, place, time_limit, exact, seed, name=type(tuner).__name__)
    trials = _Trials(tuner, settings)
    tuner.run_trial = trials.run
    try:
        yield tuner
    finally:
        del tuner.run_trial
        trials.close()


class _Trials:
    """Stands in the place of a tuner's `run_trial`."""

    def __init__(self, tuner: Any, settings: Settings) -> None:
        self._tuner = tuner
        self._settings = settings
        self._given: tuple[Any, ...] = ()
        self._pool: TrialPool | None = None

    def run(self, trial: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a trial; returns what the tuner's own `run_trial` would."""
        pool = self._pool_for(args, kwargs)
        # The values first: trials are alike by them, and the rest only leads to them.
        config = {**trial.hyperparameters.values, "trial": trial.get_state()}
        ended = pool.run(config)
        if ended.status == "finished":
            return _as_results(ended.result)
        if ended.status in ("cannot_fit", "timed_out"):
            import keras_tuner

            raise keras_tuner.errors.FailedTrialError(ended.error)
        raise LegroomError(f"{ended.error} Its log: {ended.log}")

    def close(self) -> None:
        """End what still runs."""
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _pool_for(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> TrialPool:
        """The pool of this search: its data is sent once, and not with every trial."""
        given = (*args, *(item for pair in kwargs.items() for item in pair))
        same = len(given) == len(self._given) and all(
            one is other for one, other in zip(given, self._given, strict=True)
        )
        if self._pool is None or not same:
            self.close()
            self._given = given
            self._pool = TrialPool(_TunerTraining(self._tuner, args, kwargs), self._settings)
        return self._pool


class _TunerTraining:
    """What the trials of a search train: the tuner's own `run_trial`."""

    def __init__(self, tuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._tuner = copy.copy(tuner)
        vars(self._tuner).pop("run_trial")  # the tuner as it was, whose class has its own
        self._args = args
        self._kwargs = kwargs

    def __call__(self, config: dict[str, Any]) -> list[dict[str, Any]]:
        from keras_tuner.engine.trial import Trial

        trial = Trial.from_state(config["trial"])
        results = self._tuner.run_trial(trial, *self._args, **self._kwargs)
        return [_as_dict(one) for one in (results if isinstance(results, list) else [results])]


def _as_dict(result: Any) -> dict[str, Any]:
    if hasattr(result, "history"):
        return {"history": result.history, "epoch": result.epoch}
    return {"value": result}


def _as_results(told: list[dict[str, Any]]) -> list[Any]:
    import keras

    results = []
    for one in told:
        if "value" in one:
            results.append(one["value"])
            continue
        history = keras.callbacks.History()
        history.history, history.epoch = one["history"], one["epoch"]
        results.append(history)
    return results
