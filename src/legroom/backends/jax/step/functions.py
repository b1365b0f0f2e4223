"""Training steps written by hand: on JAX they run as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from legroom.core.aside import say_left_out

__all__ = ["advise_loops", "guard_functions", "guarded_function"]


def guarded_function(
    function: Any, guard: Callable[[Any], Callable[[Any], Any]], returns: Any = None
) -> Any:
    """The function itself, and a sentence that says so."""
    name = getattr(function, "__name__", "the step")
    say_left_out(
        f"{name} runs as it is, without legroom",
        "on JAX legroom guards the fit, evaluate and predict of Keras models, and no steps written "
        "by hand yet",
    )
    return function


def advise_loops() -> None:
    """There is nothing to advise yet."""


def guard_functions(guard: Callable[[Any], Callable[[Any], Any]]) -> None:
    """There is no one place where functions on JAX apply an optimizer."""
