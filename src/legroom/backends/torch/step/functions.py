"""Training steps written by hand, which need not use Keras.

A step is told apart by the Python objects that it is called with: with another model or optimizer
it is another step.
"""

from __future__ import annotations

import enum
import functools
import weakref
from collections.abc import Callable
from typing import Any

from legroom.backends import patches
from legroom.backends.careful import Careful
from legroom.backends.stand_in import StandIn
from legroom.backends.torch.step.arguments import Arguments
from legroom.backends.torch.step.participants import PlainLoop
from legroom.backends.torch.step.reach import reachable
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
# A step may go by a few words ("train", "test"); an argument that has more values is data.
_MOST_STRINGS = 8


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


class GuardedFunction(StandIn):
    """A step that is called like the function it stands for."""

    def __init__(self, function: Any, guard: Callable[[Any], Callable[[Any], Any]]) -> None:
        super().__init__(function)
        self._guard = guard
        self._runners: dict[tuple[Any, ...], Careful] = {}
        # What was seen among the arguments: by its id, whether the step is another one with it.
        self._seen: dict[int, tuple[Any, bool]] = {}
        self._strings: dict[int, set[str]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step, guarded."""
        if patches.is_off():
            return self._function(*args, **kwargs)
        given = Arguments(args, kwargs)
        key = tuple(self._mark(place, thing) for place, (_, thing) in enumerate(given.rest))
        if key not in self._runners:
            while len(self._runners) >= _MOST_STEPS:
                self._runners.pop(next(iter(self._runners)))
            self._runners[key] = self._runner([thing for _, thing in given.rest])
        return self._runners[key](given)

    def _mark(self, place: int, thing: Any) -> Any:
        """What tells a step with this argument from another one."""
        if thing is None or isinstance(thing, (bool, enum.Enum)):
            return thing
        if isinstance(thing, str):
            seen = self._strings.setdefault(place, set())
            if len(seen) < _MOST_STRINGS:
                seen.add(thing)
            return thing if thing in seen else str  # names of files, say: they choose nothing
        if isinstance(thing, (int, float, complex, bytes)):
            return type(thing)  # it may go on counting
        if isinstance(thing, (list, tuple)):
            return type(thing)  # of numbers, or nothing
        return id(thing) if self._takes_part(thing) else type(thing)

    def _takes_part(self, thing: Any) -> bool:
        """Whether a step is another one with this object: one with a model, or a function."""
        if id(thing) in self._seen:
            return self._seen[id(thing)][1]
        found = callable(thing) or bool(reachable(thing))
        try:
            held = weakref.ref(thing, functools.partial(self._forget, id(thing)))
        except TypeError:
            if not found:
                return False
            held = thing  # so that no other has its identity
        self._seen[id(thing)] = held, found
        return found

    def _forget(self, number: int, held: Any) -> None:
        """An object is gone: so are the steps with it, and what they keep."""
        self._seen.pop(number, None)
        for key in [key for key in self._runners if number in key]:
            del self._runners[key]

    def _runner(self, others: list[Any]) -> Careful:
        """What runs the step with these objects among its arguments."""
        parts = PlainLoop(self._function, others)
        step = Step(lambda given: given.call(self._function), self._function, parts)
        return Careful(step, self._guard, self._say_unguarded)

    def _say_unguarded(self, error: BaseException) -> None:
        name = getattr(self._function, "__name__", "a step")
        say_left_out(
            f"{name} runs as it is, without legroom, because legroom itself failed "
            "(please report it)",
            in_a_line(error),
        )
