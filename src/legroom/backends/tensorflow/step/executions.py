"""The steps of an execution: one by one through the guard, or at once where it has no question.

While anything is to be found out (what fits, what slices change, how much a step needs) the guard
sees every batch. Once batches of a size are known to run whole, those of this size run in one
function, as they do in Keras, and the guard is told of them afterwards. A batch that runs out of
memory there, or is of another size, comes back to the guard.
"""

from __future__ import annotations

import time
from typing import Any

import tensorflow as tf
from keras import tree

from legroom.backends.careful import Careful
from legroom.backends.tensorflow.device import oom
from legroom.backends.tensorflow.input.counted import Counted
from legroom.backends.tensorflow.step.step import Step
from legroom.backends.tensorflow.step.step_loop import Ran, StepLoop
from legroom.core.aside import in_a_line, say_left_out

__all__ = ["Executions"]

# A step that takes longer has no use for the half of a millisecond that is saved: the loop has to
# be optimised before it first runs, which takes as long as it does for the step itself.
_SLOW = 0.05


class Executions:
    """Runs a model's steps, several at once where that is as safe as one by one.

    Args:
        name: The model's name, for messages.
        step: Its step.
        run: Runs the step on a batch, guarded.
    """

    def __init__(self, name: str, step: Step, run: Careful) -> None:
        self._name = name
        self._step = step
        self._run = run
        self._quickest = float("inf")
        self._executions = 0
        self._on_host: bool | None = None  # where batches lie, once there was one
        self._loop_ran = self._left_out = False

    def begin(self) -> None:
        """An execution begins."""
        self._executions += 1

    def one(self, data: Any) -> Any:
        """Run the step on one batch, guarded."""
        if self._on_host is None:
            leaves = [leaf for leaf in tree.flatten(data) if isinstance(leaf, tf.Tensor)]
            self._on_host = all("CPU" in leaf.device for leaf in leaves)
        began = time.perf_counter()
        outputs = self._run(data)
        self._quickest = min(self._quickest, time.perf_counter() - began)
        return outputs

    def many(self, iterator: Any, steps: int) -> Ran:
        """Run up to so many steps at once; none where the guard should see them.

        Args:
            iterator: Where their batches are taken from.
            steps: How many.

        Returns:
            What was done. With an error, it is to be raised; a batch that is left is the next one.
        """
        # The first execution is the guard's; a training of one execution needs no loop.
        if steps < 2 or self._executions < 2 or self._quickest > _SLOW:
            return Ran(0)
        if self._left_out or not self._on_host or tf.config.functions_run_eagerly():
            return Ran(0)
        guarded = self._run.guarded
        sizes = getattr(guarded, "whole_sizes", ())
        source = iterator.inner if sizes and isinstance(iterator, Counted) else iterator
        if not sizes or not isinstance(source, tf.data.Iterator):
            return Ran(0)
        loop = self._loop()
        if loop is None:
            return Ran(0)
        began = time.monotonic()
        ran = loop(source, steps, sizes)
        if isinstance(iterator, Counted):
            iterator.consumed += ran.steps + (ran.left is not None)
        if ran.steps:
            guarded.count_whole(ran.steps, ran.samples, ran.largest)
        failed = ran.error is not None
        self._loop_ran = self._loop_ran or not failed
        if ran.left is not None and isinstance(ran.error, Exception):
            self._answer(ran, guarded, began)
        if failed and ran.error is None:
            self._step.recover()  # here, where nobody holds the error any more
        return ran

    def _loop(self) -> StepLoop | None:
        try:
            return self._step.loop()
        except Exception as error:
            self._leave_out(error)
            return None

    def _answer(self, ran: Ran, guarded: Any, began: float) -> None:
        """Have the guard run a batch that failed, unless the error is about the data."""
        error = ran.error
        assert error is not None
        if not oom.is_oom(error):
            if self._loop_ran:
                return
            self._leave_out(error)  # where it is not the loop's fault, the step raises it again
        elif self._step.broken_by_oom:
            guarded.ran_out(self._step.describe(error), began)  # never to be tried again
        else:
            # Memory is short. The step by itself may need a little less, so it is tried whole
            # before the guard looks for slices.
            self._left_out = True
        ran.error = None

    def _leave_out(self, error: BaseException) -> None:
        self._left_out = True
        say_left_out(
            f"{self._name} runs the steps of an execution one by one, which is slower",
            in_a_line(error),
        )
