"""XLA's own figures of a step that it compiles."""

from __future__ import annotations

from typing import Any

from legroom.backends.tensorflow.graph.stepgraph import StepGraph, trace_step
from legroom.backends.tensorflow.probe.parent import ProbeChild

__all__ = ["compile_step", "compiles"]


def compiles(model: Any) -> bool:
    """Whether a model's step is compiled with XLA."""
    return getattr(model, "jit_compile", None) is True


def compile_step(model: Any, samples: int, **asked: Any) -> tuple[StepGraph, int]:
    """Have a step compiled, in a child and without running it.

    Args:
        model: The model.
        samples: The batch size to compile for.
        **asked: As for `trace_step`.

    Returns:
        The step, and the bytes that its program takes while it runs.

    Raises:
        ProbeFailed: If XLA can't compile it.
    """
    with ProbeChild() as child:
        step = trace_step(model, **asked, compiled=True)
        figures = child.compiled(step, samples)
    given = sum(held.nbytes for held in step.held if held.name)
    given += step.input_bytes_per_sample * samples
    # Its temporary memory, and what it returns beside the variables that it writes in place.
    return step, max(figures["temp"], figures["total"] - given)
