"""A step as the guard sees it: something that runs on a batch, whole or in slices."""

from __future__ import annotations

import gc
from typing import Any

from legroom.backends.tensorflow import batch, oom, pool
from legroom.backends.tensorflow.rules import Rules
from legroom.backends.tensorflow.sameness import find_rules
from legroom.backends.tensorflow.sliced import SlicedStep
from legroom.backends.tensorflow.trace import StepTrace
from legroom.backends.tensorflow.whole import Traits, WholeStep
from legroom.predict.timeline import Peak

__all__ = ["Step"]


class Step:
    """A training, test or predict step, or a hand-written one.

    Args:
        traits: How it is to be traced.
        model: The Keras model, where there is one.
        concatenates: Whether its results are one for each sample, as a predict step's are; then
            nothing has to be found out before it is sliced.
        rules: How its slices are put together, where the user has said so.
    """

    def __init__(
        self,
        traits: Traits,
        *,
        model: Any = None,
        concatenates: bool = False,
        rules: Rules | None = None,
    ) -> None:
        self._traits = traits
        self._model = model
        self._whole = WholeStep(traits)
        self._rules = rules
        if concatenates:
            self._rules = Rules(applies=0, gradients=[], concatenates=True)
        self._sliced: SlicedStep | None = None

    def samples(self, data: Any) -> int | None:
        """The number of samples in a batch; None where that can't be told."""
        return batch.batch_size(data)

    def run(self, data: Any, slice_size: int | None) -> Any:
        """Run the step on a batch. If it raises out of memory, nothing has happened.

        Args:
            data: The batch.
            slice_size: The size of its slices; None for the whole batch at once.
        """
        if slice_size is None:
            if self._sliced is not None:
                self._sliced.release()
                self._sliced = None
            return self._whole(data)
        if self._sliced is None:
            self._sliced = SlicedStep(self._traits, self.rules(data))
        return self._sliced(batch.as_tensors(data), slice_size)

    def rules(self, data: Any) -> Rules:
        """How the step's slices are put together; found out on the first call."""
        if self._rules is None:
            self._whole.prepare(data)  # what the step creates must exist before it is compared
            self._rules = find_rules(self._traits, batch.as_tensors(data), self._model)
        return self._rules

    def predictor(self, data: Any) -> StepNeeds | None:
        """What the step should need at a number of samples, from its graph alone."""
        samples = self.samples(data)
        graphs = self._whole.prepare(data)
        if not graphs or samples is None:
            return None
        return StepNeeds([StepTrace(graph, samples) for graph in graphs], samples)

    @staticmethod
    def is_oom(error: BaseException) -> bool:
        """Whether an exception means that device memory ran out."""
        return oom.is_oom(error)

    @staticmethod
    def describe(error: BaseException) -> tuple[str | None, int | None]:
        """The layer or op that ran out, and the bytes it asked for."""
        details = oom.describe(error)
        return details.place, details.needed_bytes

    @staticmethod
    def recover() -> None:
        """Free what a failed step left behind, once its exception is dropped."""
        gc.collect()

    pool = pool


class StepNeeds:
    """The bytes a step should need on whole batches and on slices of them."""

    def __init__(self, traces: list[StepTrace], samples: int) -> None:
        self._traces = traces
        self._samples = samples
        # A second graph is one that applies gradients, and they wait for it.
        self._gradients = sum(traces[0].kept_bytes(1) for _ in traces[1:])

    def __call__(self, samples: int) -> int:
        """The bytes beyond what is in use before the step, with slices of this size."""
        sums = self._gradients if samples < self._samples else 0
        first = self._traces[0].need(samples) + sums
        others = [self._gradients + sums + trace.need(samples) for trace in self._traces[1:]]
        return max([first, *others])

    def peak(self, samples: int) -> Peak:
        """The step's largest moment on this many samples."""
        return self._traces[0].peak(samples)
