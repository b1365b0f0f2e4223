"""Training steps written by hand, which need not use Keras.

A step is told apart by the Python objects that it is called with: with another model or optimizer
it is another step.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from legroom.backends import patches
from legroom.backends.careful import Careful
from legroom.backends.torch.step import batch
from legroom.backends.torch.step.participants import PlainLoop
from legroom.backends.torch.step.step import Step
from legroom.backends.torch.step.watching import is_watched
from legroom.core.aside import in_a_line, say_left_out
from legroom.core.errors import LegroomError
from legroom.core.events import Note, emit

__all__ = ["GuardedFunction", "advise_loops", "guard_functions", "guarded_function"]

_ADVICE = (
    "this training loop runs as it is. To have it continue when memory runs out, add two lines: "
    "'import legroom', and '@legroom.step' above the function that calls backward()"
)
# A function that is called with ever new objects is a new step each time; the oldest are dropped.
_MOST_STEPS = 32


def guarded_function(
    function: Any, guard: Callable[[Any], Callable[[Any], Any]], returns: Any = None
) -> GuardedFunction:
    """Guard a step.

    Args:
        function: The step.
        guard: Makes the guarded runner.
        returns: How its results are put together: on PyTorch it can only be "last".
    """
    if returns not in (None, "last"):
        raise LegroomError(
            "On PyTorch a step ends once, with its last slice, and returns what that gives; a loss "
            f"that went backward is the whole batch's. Leave returns= out. Received: {returns!r}"
        )
    return GuardedFunction(function, guard)


def advise_loops() -> None:
    """Say how a loop that is not guarded can be, once it trains."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    said = False

    def advise(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal said
        if not said and not is_watched():
            emit(Note(_ADVICE))
        said = True

    hook = register_optimizer_step_pre_hook(advise)
    patches.at_removal(hook.remove)


def guard_functions(guard: Callable[[Any], Callable[[Any], Any]]) -> None:
    """Guard every function that applies an optimizer: on PyTorch only those that are marked."""
    del guard


class GuardedFunction:
    """A step that is called like the function it stands for."""

    def __init__(self, function: Any, guard: Callable[[Any], Callable[[Any], Any]]) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._guard = guard
        # The objects are kept, so that no other has their identity.
        self._runners: dict[tuple[Any, ...], tuple[Careful, list[Any]]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, guarded."""
        if patches.is_off():
            return self._function(*args, **kwargs)
        given = (args, kwargs)
        leaves = batch.flatten(given)
        fixed = {i: leaf for i, leaf in enumerate(leaves) if not _is_data(leaf)}
        key = tuple((i, x if isinstance(x, (str, bool)) else id(x)) for i, x in fixed.items())
        if key not in self._runners:
            while len(self._runners) >= _MOST_STEPS:
                self._runners.pop(next(iter(self._runners)))
            self._runners[key] = self._runner(fixed), list(fixed.values())
        data = [None if i in fixed else leaf for i, leaf in enumerate(leaves)]
        return self._runners[key][0](batch.unflatten(given, data))

    def _runner(self, fixed: dict[int, Any]) -> Careful:
        """What runs the step with these objects, by their place among its arguments."""

        def call(data: Any) -> Any:
            # An empty place stays one: `None` is a leaf here, too.
            leaves = [fixed.get(i, leaf) for i, leaf in enumerate(batch.flatten(data))]
            args, kwargs = batch.unflatten(data, leaves)
            return self._function(*args, **kwargs)

        parts = PlainLoop(self._function, list(fixed.values()))
        return Careful(Step(call, self._function, parts), self._guard, self._say_unguarded)

    def _say_unguarded(self, error: BaseException) -> None:
        name = getattr(self._function, "__name__", "a step")
        say_left_out(
            f"{name} runs as it is, without legroom, because legroom itself failed "
            "(please report it)",
            in_a_line(error),
        )

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """As a method: the instance comes first among the arguments."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def _is_data(leaf: Any) -> bool:
    """Whether an argument is data, or a number that may go on counting."""
    if isinstance(leaf, (torch.nn.Parameter, bool)):
        return False
    return isinstance(leaf, (torch.Tensor, np.ndarray, np.generic, int, float))
