"""Training steps written by hand: functions compiled by `jax.jit`, or by `flax.nnx.jit` with it.

A step is told apart by what it is called with: with other types, other shapes but for the number of
samples, or another static argument it is another step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from legroom.backends import patches
from legroom.backends.careful import Careful, is_users_own
from legroom.backends.jax.device.caps import cap_loop
from legroom.backends.jax.functions.call import Call, is_array
from legroom.backends.jax.functions.function_step import FunctionStep
from legroom.backends.keras.slices.rules import Refused
from legroom.backends.stand_in import StandIn
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.errors import LegroomError

__all__ = ["GuardedFunction", "advise_loops", "guard_functions", "guarded_function"]

# A function that is called with ever new shapes is a new step each time; the oldest are dropped.
_MOST_STEPS = 32


def guarded_function(
    function: Any, guard: Callable[[Any], Callable[[Any], Any]], returns: Any = None
) -> Any:
    """Guard a step.

    Args:
        function: The step.
        guard: Makes the guarded runner.
        returns: How its results are put together: on JAX that is found out.
    """
    if returns is not None:
        raise LegroomError(
            "On JAX legroom finds out how results are put together: by where the step adds up its "
            f"samples. Leave returns= out. Received: {returns!r}"
        )
    if _is_compiled(function):
        return GuardedFunction(function, guard)
    if _is_compiled(inner := getattr(function, "jitted_fn", None)):
        # Of flax.nnx, whose objects are arrays within: it puts new ones into them when it is over.
        function.jitted_fn = GuardedFunction(inner, guard)
    else:
        _say_plain(
            function, "legroom guards functions compiled by jax.jit or flax.nnx.jit: put @jax.jit "
            "below @legroom.step",
        )  # fmt: skip
    return function


def _is_compiled(function: Any) -> bool:
    return all(hasattr(function, name) for name in ("trace", "lower", "clear_cache"))


def advise_loops() -> None:
    """There is nothing that tells a loop in JAX from other programs."""


def guard_functions(guard: Callable[[Any], Callable[[Any], Any]]) -> None:
    """There is no one place where functions on JAX apply an optimizer."""


class GuardedFunction(StandIn):
    """A step that is called like the function it stands for."""

    def __init__(self, function: Any, guard: Callable[[Any], Callable[[Any], Any]]) -> None:
        super().__init__(function)
        self._guard = guard
        self._steps: list[_Known] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, guarded."""
        call = Call(args, kwargs)
        types = set(map(type, call.leaves))  # few, and asking each leaf takes longer
        if patches.is_off() or any(issubclass(x, jax.core.Tracer) for x in types):
            return self._function(*args, **kwargs)  # which is a part of a larger program then
        step = next((one for one in self._steps if one.is_for(call)), None)
        if step is None:
            del self._steps[: len(self._steps) + 1 - _MOST_STEPS]
            self._steps.append(step := self._known(call))
        return step.run(call)

    def _known(self, call: Call) -> _Known:
        cap_loop()
        try:
            step = FunctionStep(self._function, call)
        except Exception as error:
            if isinstance(error, Refused):
                _say_plain(self._function, str(error))
            elif not is_users_own(error):  # theirs is raised again when it runs
                self._say_unguarded(error)
            return _Known(call, range(len(call.leaves)), lambda call: call.of(self._function))
        return _Known(call, step.dynamic, Careful(step, self._guard, self._say_unguarded))

    def _say_unguarded(self, error: BaseException) -> None:
        _say_plain(self._function, f"legroom itself failed (please report it): {in_a_line(error)}")


class _Known:
    """A step that was met.

    Args:
        call: The call that it was met with.
        dynamic: The leaves of such calls that are arrays or numbers for JAX.
        run: Runs it.
    """

    def __init__(self, call: Call, dynamic: Sequence[int], run: Callable[[Call], Any]) -> None:
        self.run = run
        self._tree = call.tree
        arrays = [number for number in dynamic if is_array(call.leaves[number])]
        self._arrays = [(k, call.leaves[k].shape[1:], call.leaves[k].dtype) for k in arrays]
        self._numbers = [(k, type(call.leaves[k])) for k in set(dynamic) - set(arrays)]
        static = sorted(set(range(len(call.leaves))) - set(dynamic))
        self._static = [(k, call.leaves[k]) for k in static]

    def is_for(self, call: Call) -> bool:
        """Whether a call is one of this step."""
        if call.tree != self._tree:
            return False
        leaves = call.leaves
        for number, shape, dtype in self._arrays:
            leaf = leaves[number]
            if not hasattr(leaf, "dtype") or leaf.shape[1:] != shape or leaf.dtype != dtype:
                return False
        return all(type(leaves[k]) is kind for k, kind in self._numbers) and all(
            leaves[k] == leaf for k, leaf in self._static
        )


def _say_plain(function: Any, reason: str) -> None:
    name = getattr(function, "__name__", "the step")
    say_left_out(f"{name} runs as it is, without legroom", reason)
