"""An eager step on its whole batch, that happens wholly or not at all.

Its writes are logged, and undone where it fails. The old values of a large model take memory until
then, so its update waits until the step's own code is through and looks after itself, where it may:
where that code applies once and does nothing with the new weights. That is seen when the step runs
for the first time, as it is: nothing of a step may be begun twice to find it out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from legroom.backends.careful import is_users_own
from legroom.backends.tensorflow.commit.collect import Applied, Since, collecting, looking_on
from legroom.backends.tensorflow.commit.committer import Committer
from legroom.backends.tensorflow.commit.units import works_in_units
from legroom.backends.tensorflow.device import oom, pool
from legroom.backends.tensorflow.effects.variables import undone_by
from legroom.backends.tensorflow.effects.write_log import logging_writes
from legroom.backends.tensorflow.step.traits import Traits

__all__ = ["EagerStep"]


class _CannotWait(BaseException):
    """An eager step applies twice, or uses the new weights: `apply` can't wait for its end."""


class EagerStep:
    """An eager step on whole batches."""

    def __init__(self, traits: Traits, lean: bool = False) -> None:
        self._traits = traits
        self._lean = lean
        self._may_wait: bool | None = False if lean else None  # None: not seen yet
        self.committer: Committer | None = None
        self.branches = False

    @property
    def spare_bytes(self) -> int:
        """Device memory that it takes over Keras's own step, at most, once it has run."""
        return 0 if self._lean or self.committer is None else self.committer.held_bytes

    def prepare(self, data: Any) -> list[Any]:
        """Nothing to trace."""
        return []

    def graphs(self) -> list[Any]:
        """None were traced."""
        return []

    def __call__(self, data: Any) -> Any:
        """Run the step. If it raises anything at all, nothing has happened."""
        python = self._traits.python_state()
        try:
            if self._may_wait is None:
                return self._looked_at(data)
            if self._may_wait:
                try:
                    return self._collected(data)
                except _CannotWait:  # this time it did something else
                    self._may_wait = False
                    python.restore()
            return self._logged(self._traits.call, data, on_host=self._lean)
        except Exception as error:
            if oom.is_oom(error) or not is_users_own(error):
                python.restore()  # as if the step had not begun
            raise

    def _logged(self, body: Callable[[Any], Any], data: Any, *, on_host: bool) -> Any:
        with logging_writes(on_host=on_host) as log:

            def logged(inputs: Any) -> Any:
                with logging_writes(log):
                    return body(inputs)

            return undone_by(log, lambda: self._traits.run(logged, data))

    def _looked_at(self, data: Any) -> Any:
        """Run it as it is, and see whether its update could have waited."""
        applied: list[Applied] = []
        functions: list[bool] = []
        since = Since()

        def tell(call: Applied) -> None:
            applied.append(dataclasses.replace(call, gradients=[]))  # whose memory is not ours
            since.begin(call)

        def body(inputs: Any) -> Any:
            with looking_on(tell, on_function=lambda: functions.append(True)):
                return self._traits.call(inputs)

        try:
            # What is kept on the device this once could be too much for it.
            on_host = self._traits.trains and pool.has_limit()
            outputs = self._logged(body, data, on_host=on_host)
        finally:
            goes_on = since.end()
        if applied:
            several = len(applied) > 1 or bool(functions)
            self._may_wait = not (several or goes_on) and works_in_units(applied[0].optimizer)
        return outputs

    def _collected(self, data: Any) -> Any:
        applied: list[Applied] = []
        since = Since()

        def catch(call: Applied) -> None:
            if applied or not works_in_units(call.optimizer):
                raise _CannotWait
            applied.append(call)
            since.begin(call)

        def several() -> None:
            raise _CannotWait

        with logging_writes() as log:

            def body(inputs: Any) -> Any:
                with (
                    logging_writes(log),
                    collecting(catch, on_function=several, on_elsewhere=several),
                ):
                    return self._traits.call(inputs)

            try:
                outputs = self._traits.run(body, data)
                if since.end():
                    raise _CannotWait  # it uses the weights, which must be the new ones
            except BaseException:
                since.end()
                log.restore()
                raise
        if applied:
            call = applied.pop()
            if self.committer is None or not self.committer.is_for(call):
                self.committer = Committer(call.optimizer, call.variables, self._traits)
            gradients = list(call.gradients)
            del call
            self.committer.update(gradients, log)
        return outputs
