"""JAX, as the floors above see it. Nothing is imported before it is asked for."""

from __future__ import annotations

from typing import Any, NoReturn, cast

from legroom.backends import base
from legroom.core.errors import UnsupportedModelError

__all__ = ["BACKEND"]


class _Jax:
    """What each part of the backend is behind; see `legroom.backends.base.Backend`."""

    name = "jax"

    @property
    def caps(self) -> base.Caps:
        from legroom.backends.jax.device import caps

        return caps

    @property
    def device(self) -> base.Device:
        from legroom.backends.jax.device import pool as device

        return device.default_pool()

    @property
    def errors(self) -> base.Errors:
        from legroom.backends.jax.device import errors

        return errors

    @property
    def trainer(self) -> base.Trainer:
        from legroom.backends.jax.step import trainer

        return trainer

    @property
    def functions(self) -> base.Functions:
        from legroom.backends.jax.functions import guarded

        return guarded

    @property
    def growth(self) -> base.Growth:
        from legroom.backends.jax.growth import release

        return release

    @property
    def state(self) -> base.State:
        from legroom.backends.jax.state import training_state as state

        return state

    @property
    def epochs(self) -> base.WatchedEpochs:
        from legroom.backends.jax.input import positions

        return positions

    @property
    def shuffles(self) -> base.Shuffles:
        from legroom.backends.jax.input import shuffle_seeds

        return shuffle_seeds

    @property
    def passages(self) -> base.Passages:
        from legroom.backends.jax.input import passage

        return passage

    @property
    def input(self) -> base.Input:
        from legroom.backends.jax.input import data as given

        return given

    @property
    def fits(self) -> base.Fits:
        from legroom.backends.jax.input import fit_calls

        return fit_calls

    @property
    def streams(self) -> base.Streams:
        # Pipelines of tf.data, which Keras takes on JAX too.
        return base.named("tensorflow").streams

    @property
    def recompute(self) -> base.Recompute:
        from legroom.backends.jax.recompute import face

        return face

    @property
    def model_files(self) -> base.ModelFiles:
        from legroom.backends.jax.models import files

        return files

    @property
    def models(self) -> base.Models:
        from legroom.backends.jax.models import face

        models: Any = face
        return cast(base.Models, models)

    @property
    def leaner_models(self) -> base.LeanerModels:
        from legroom.backends.jax.models.leaner import LEANER_MODELS

        return LEANER_MODELS

    @property
    def after_training(self) -> base.AfterTraining:
        from legroom.backends.jax.models import after_training

        return after_training

    @property
    def predictions(self) -> base.Predictions:
        from legroom.backends import patches

        if (lacking := patches.missing("estimate")) is not None:
            raise UnsupportedModelError(f"legroom can't estimate here: {lacking}.")
        from legroom.backends.jax.forecast import step_forecast

        return step_forecast

    @property
    def growth_signs(self) -> base.GrowthSigns:
        _not_yet("watch for growth")


def _not_yet(what: str) -> NoReturn:
    raise UnsupportedModelError(
        f"legroom can't {what} on JAX yet. On TensorFlow it can: set KERAS_BACKEND=tensorflow "
        "before keras is imported."
    )


BACKEND: Any = _Jax()
