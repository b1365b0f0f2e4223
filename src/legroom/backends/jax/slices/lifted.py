"""Values that were noted inside a gradient's function, for use outside of it.

JAX runs a function under `jax.grad` with tracers that pair each value with its change. The value
itself belongs to whoever asked for the gradient, and can be used there. One that belongs to a
function within, compiled or recomputed by itself, can't leave it.
"""

from __future__ import annotations

from typing import Any

import jax

from legroom.backends.keras.slices.rules import Refused

__all__ = ["Lift", "lifted"]


def lifted(value: Any) -> Any:
    """The value itself, outside of all gradients that it was computed for."""
    while isinstance(value, jax.core.Tracer) and hasattr(value, "primal"):
        value = value.primal
    return value


class Lift:
    """Lifts values to where something else is known.

    Args:
        known: Arrays of the function to lift to, such as what it was called with.
    """

    def __init__(self, known: list[Any]) -> None:
        # Run op by op, it has no tracers of its own.
        self._trace = next((_trace_of(x) for x in known if _trace_of(x) is not None), None)

    def __call__(self, value: Any) -> Any:
        """The value there.

        Raises:
            Refused: If it can't leave the function that it was computed in.
        """
        value = lifted(value)
        if isinstance(value, jax.core.Tracer) and _trace_of(value) is not self._trace:
            raise Refused(
                "it computes its loss or updates its metrics inside a function that JAX compiles "
                "or recomputes separately"
            )
        return value


def _trace_of(value: Any) -> Any:
    return getattr(value, "_trace", None) if isinstance(value, jax.core.Tracer) else None
