"""Optuna: an objective whose trials run in processes of their own, and share the memory.

import optuna
from legroom.integrations.optuna import Objective

def suggest(trial):
    return {"units": trial.suggest_int("units", 32, 512), "lr": trial.suggest_float("lr", …)}

def train(config):
    …
    return history.history["val_loss"][-1]

study = optuna.create_study()
with Objective(suggest, train, memory="8GiB") as objective:
    study.optimize(objective, n_trials=40, n_jobs=4)
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from legroom.core.errors import LegroomError
from legroom.sweeps.opening import Settings
from legroom.sweeps.pool import TrialPool
from legroom.sweeps.trials.trial import Trial

__all__ = ["Objective"]


class Objective:
    """An objective for `study.optimize`.

    With `n_jobs` above 1, its threads share one admission: as many trainings run at once as the
    memory allows. A training that does not fit is pruned, with the reason; so the study goes on
    and its sampler is not misled. What a training raises is raised.

    Args:
        suggest: Makes a config of a trial: where `trial.suggest_…` is called.
        train: Trains with a config, in a process of its own; returns the value, or the values.
        memory: What all trainings share, as in `legroom.sweep`.
        workers: How many run at once, at most.
        folder: Where logs, journals and results are kept.
        time_limit: Seconds after which a training is ended, and pruned.
        exact: Never slice what slices would change.
        seed: What the seeds of the trainings are made of.
    """

    def __init__(
        self,
        suggest: Callable[[Any], Any],
        train: Callable[[Any], Any],
        *,
        memory: str | int | None = None,
        workers: int | None = None,
        folder: str | os.PathLike[str] | None = None,
        time_limit: float | None = None,
        exact: bool = False,
        seed: int = 0,
    ) -> None:
        self._suggest = suggest
        self._pool = TrialPool(train, Settings(memory, workers, folder, time_limit, exact, seed))

    def __call__(self, trial: Any) -> Any:
        """Train with what a trial suggests.

        Raises:
            optuna.TrialPruned: If it does not fit, or takes too long.
            LegroomError: If it fails.
        """
        ended = self._pool.run(self._suggest(trial))
        _describe(trial, ended)
        if ended.status == "finished":
            return ended.result
        if ended.status in ("cannot_fit", "timed_out"):
            import optuna

            raise optuna.TrialPruned(ended.error)
        raise LegroomError(f"{ended.error} Its log: {ended.log}")

    def close(self) -> None:
        """End what still runs."""
        self._pool.close()

    def __enter__(self) -> Objective:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _describe(trial: Any, ended: Trial) -> None:
    """Keep with Optuna's own trial what was seen of its memory."""
    trial.set_user_attr("legroom_status", ended.status)
    trial.set_user_attr("legroom_peak_bytes", ended.peak_bytes)
    if ended.error:
        trial.set_user_attr("legroom_error", ended.error)
