"""TensorFlow, as the floors above see it. Nothing is imported before it is asked for."""

from __future__ import annotations

from legroom.backends import base
from legroom.backends.models import (
    AfterTraining,
    LeanerModels,
    ModelFiles,
    Models,
    Predictions,
)

__all__ = ["BACKEND"]


class _TensorFlow:
    """What each part of the backend is behind; see :class:`legroom.backends.base.Backend`."""

    name = "tensorflow"

    @property
    def caps(self) -> base.Caps:
        from legroom.backends.tensorflow.device import caps

        return caps

    @property
    def device(self) -> base.Device:
        from legroom.backends.tensorflow.device import pool

        return pool

    @property
    def errors(self) -> base.Errors:
        from legroom.backends.tensorflow.device import oom

        return oom

    @property
    def trainer(self) -> base.Trainer:
        from legroom.backends.tensorflow.step import trainer

        return trainer

    @property
    def functions(self) -> base.Functions:
        from legroom.backends.tensorflow.step import functions

        return functions

    @property
    def state(self) -> base.State:
        from legroom.backends.tensorflow.step import state

        return state

    @property
    def input(self) -> base.Input:
        from legroom.backends.tensorflow.input import pipeline

        return pipeline

    @property
    def epochs(self) -> base.WatchedEpochs:
        from legroom.backends.tensorflow.input import positions

        return positions

    @property
    def shuffles(self) -> base.Shuffles:
        from legroom.backends.tensorflow.input import shuffle_seeds

        return shuffle_seeds

    @property
    def streams(self) -> base.Streams:
        from legroom.backends.tensorflow.input import streams

        return streams

    @property
    def recompute(self) -> base.Recompute:
        from legroom.backends.tensorflow.recompute import face

        return face

    @property
    def model_files(self) -> ModelFiles:
        from legroom.backends.keras import model_file

        return model_file

    @property
    def models(self) -> Models:
        from legroom.backends.tensorflow.models import face

        return face

    @property
    def leaner_models(self) -> LeanerModels:
        from legroom.backends.tensorflow.models import leaner

        return leaner

    @property
    def after_training(self) -> AfterTraining:
        from legroom.backends.tensorflow.models import after_training

        return after_training

    @property
    def predictions(self) -> Predictions:
        from legroom.backends.tensorflow.forecast import step_forecast

        return step_forecast

    @property
    def growth(self) -> base.Growth:
        from legroom.backends.tensorflow.growth import release

        return release


BACKEND: base.Backend = _TensorFlow()
