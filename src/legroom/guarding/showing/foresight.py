"""What a report tells beside what happened: the plan before the first step, and the input's stages.

Made only where a report is wanted, because it costs a second or two before the first step.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from legroom.backends.base import current
from legroom.core.events import InputRead, NotPredicted, Predicted, emit

__all__ = ["Foresight", "foresight"]


class Foresight:
    """Whether plans are told, and how. One for each process."""

    def __init__(self) -> None:
        self.wanted = False

    def of(self, model: Any) -> Callable[[Any, int, int | None], None] | None:
        """What to do with a model's first batch; None where nobody asked."""
        if not self.wanted:
            return None

        def tell(data: Any, samples: int, budget: int | None) -> None:
            # A training is worth more than a picture of it.
            try:
                _tell_plan(model, data, samples, budget)
            except Exception as error:
                emit(NotPredicted(reason=f"{type(error).__name__}: {error}"))

        return tell

    def look_at_input(self, call: Any) -> None:
        """Tell the stages of what a call of `fit` is given, where they can be read."""
        if self.wanted:
            with contextlib.suppress(Exception):
                arguments = getattr(call, "args", ())[1:]
                _tell_stages(call.keywords.get("x", arguments[0] if arguments else None))


def _tell_plan(model: Any, data: Any, samples: int, budget: int | None) -> None:
    from legroom.core.errors import CannotFitError
    from legroom.planning.make import plan
    from legroom.prediction.sources import estimate

    try:
        made = plan(model, samples, memory=budget, data=data, source="traced")
    except CannotFitError:
        alone = estimate(model, samples, data=data, source="traced")
        emit(Predicted(estimate=alone.to_dict()))
        return
    emit(Predicted(plan=made.to_dict()))


def _tell_stages(data: Any) -> None:
    given = current().input
    if given.is_dataset(data):
        stages = given.read_pipeline(data)
    elif given.is_sequence(data):
        stages = given.read_sequence(data)
    else:
        return
    emit(InputRead(stages=tuple(stages)))


foresight = Foresight()
