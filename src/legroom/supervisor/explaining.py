"""After an error of memory in a guarded process: what it means, and what would help."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
import types
from typing import Any

from legroom.core.errors import CannotFitError
from legroom.core.units import MEMORY_VARIABLE, format_bytes

__all__ = ["advise_to_fit_error", "explain_error"]


def explain_error(error: BaseException) -> None:
    """After the traceback of an error of memory: what it means, and how legroom could help."""
    # A script that only runs out of disk, or imports nothing of this size, gets its own words only.
    with contextlib.suppress(Exception):
        from legroom.messages import diagnose_exception
        from legroom.planning.explain import explain_with_models
        from legroom.report.diagnosis import print_diagnosis
        from legroom.report.screen.lines import say

        if not diagnose_exception(error).is_oom:
            return
        say(_what_ran_out(), colour="31")
        diagnosis = explain_with_models(error, _models(error))
        # This is `legroom run` already: it is no remedy here.
        others = [remedy for remedy in diagnosis.remedies if "legroom run" not in str(remedy)]
        print_diagnosis(dataclasses.replace(diagnosis, remedies=tuple(others)), sys.stderr)


def advise_to_fit_error(error: CannotFitError) -> None:
    """After legroom gave up: what a step of the model needs, and what would save how much."""
    with contextlib.suppress(Exception):
        from legroom.planning.explain import advise_to_fit
        from legroom.report.diagnosis import print_diagnosis

        diagnosis = advise_to_fit(_models(error), error.budget_bytes)
        if diagnosis is not None:
            print_diagnosis(diagnosis, sys.stderr)


def _models(error: BaseException) -> list[Any]:
    """The Keras models that were at hand where an error came from, the innermost first."""
    keras = sys.modules.get("keras")
    if keras is None:
        return []
    found: dict[int, Any] = {}
    frames: list[types.FrameType] = []
    traceback = error.__traceback__
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    for frame in reversed(frames):
        for value in list(frame.f_locals.values()):
            if isinstance(value, keras.Model):
                found.setdefault(id(value), value)
    return list(found.values())


def _what_ran_out() -> str:
    """That it was outside of what is guarded, and how that could be guarded."""
    cap = os.environ.get(MEMORY_VARIABLE)
    limit = f" (it is capped at {format_bytes(int(cap))})" if cap else ""
    compiled = ""
    if "jax" in sys.modules and sys.modules.keys().isdisjoint(("tensorflow", "torch")):
        compiled = "    @jax.jit\n"
        if "keras" not in sys.modules:
            limit = " (a cap is put on by the first step that is guarded)" if cap else ""
    return (
        f"memory ran out{limit} in code that legroom does not run in slices: a loop written "
        "out step by step, or something outside of a training. To have a step guarded, put it into "
        "a function and write @legroom.step above it:\n"
        f"    @legroom.step\n{compiled}"
        "    def train_step(x, y): ..."
    )
