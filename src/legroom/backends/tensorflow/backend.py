"""TensorFlow, as the floors above see it. Nothing is imported before it is asked for."""

from __future__ import annotations

from legroom.backends import base

__all__ = ["BACKEND"]


class _TensorFlow:
    """What each part of the backend is behind; see `legroom.backends.base.Backend`."""

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
        from legroom.backends.tensorflow.functions import hand_written

        return hand_written

    @property
    def state(self) -> base.State:
        from legroom.backends.tensorflow.step import state

        return state

    @property
    def input(self) -> base.Input:
        from legroom.backends.tensorflow.input import pipeline

        return pipeline

    @property
    def fits(self) -> base.Fits:
        from legroom.backends.tensorflow.input import fit_calls

        return fit_calls

    @property
    def epochs(self) -> base.WatchedEpochs:
        from legroom.backends.tensorflow.input import positions

        return positions

    @property
    def passages(self) -> base.Passages:
        from legroom.backends.tensorflow.input import passages

        return passages

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
    def model_files(self) -> base.ModelFiles:
        from legroom.backends.tensorflow.models import files

        return files

    @property
    def models(self) -> base.Models:
        from legroom.backends.tensorflow.models import face

        return face

    @property
    def leaner_models(self) -> base.LeanerModels:
        from legroom.backends.tensorflow.models.leaner import LEANER_MODELS

        return LEANER_MODELS

    @property
    def after_training(self) -> base.AfterTraining:
        from legroom.backends.tensorflow.models import after_training

        return after_training

    @property
    def predictions(self) -> base.Predictions:
        from legroom.backends.tensorflow.forecast import step_forecast

        return step_forecast

    @property
    def growth(self) -> base.Growth:
        from legroom.backends.tensorflow.growth import release

        return release

    @property
    def growth_signs(self) -> base.GrowthSigns:
        from legroom.backends.tensorflow.growth import signs

        return signs


BACKEND: base.Backend = _TensorFlow()
