"""Random numbers of Python and NumPy for one thread alone.

To run a step on trial its draws must not be missed afterwards. Taking the generators' states and
putting them back would do, were it not for the threads that prepare the input: what they draw
meanwhile would be drawn again. So this thread draws from copies, and the others go on as they were.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from legroom.backends import patches

__all__ = ["OwnDraws", "own_draws"]


def _bound(module: Any) -> list[str]:
    """The functions of a module that are methods of its one generator."""
    generator = vars(module)["random"].__self__
    return [
        name
        for name, value in vars(module).items()
        if getattr(value, "__self__", None) is generator and hasattr(type(generator), name)
    ]


# Read once: while a thread draws for itself, others find its stand-ins here.
_METHODS = {module: _bound(module) for module in (random, np.random)}


class OwnDraws:
    """Copies of the generators of Python and NumPy.

    Attributes:
        python: That of `random`.
        legacy: That of `numpy.random`.
    """

    def __init__(self) -> None:
        self.python, self.legacy = random.Random(), np.random.RandomState()
        self.python.setstate(random.getstate())
        self.legacy.set_state(np.random.get_state())
        self._before = self._states()

    def _states(self) -> dict[str, str]:
        """The generators' states, in a form that can be compared."""
        legacy = [np.asarray(part).tolist() for part in self.legacy.get_state()]
        return {"random": repr(self.python.getstate()), "numpy.random": repr(legacy)}

    def moved(self) -> list[str]:
        """The modules that were drawn from."""
        return list(self.drawn())

    def drawn(self) -> dict[str, str]:
        """Where the generators are of the modules that were drawn from."""
        now = self._states()
        return {name: now[name] for name, state in self._before.items() if now[name] != state}


@contextlib.contextmanager
def own_draws() -> Iterator[OwnDraws]:
    """Let `random` and `numpy.random` in this thread draw what they would, and move nothing.

    Names that were imported out of these modules (`from random import shuffle`) are not reached.
    """
    own = OwnDraws()
    python, legacy = own.python, own.legacy
    ways: dict[str, Any] = {"seed": legacy.seed, "sample": legacy.random_sample}
    ways["ranf"] = legacy.random_sample
    ways |= {name: getattr(legacy, name) for name in _METHODS[np.random]}
    with contextlib.ExitStack() as stack:
        for name, way in ways.items():
            stack.enter_context(patches.replaced("numpy.random", name, _always(way)))
        for name in _METHODS[random]:
            way = getattr(python, name)
            stack.enter_context(patches.replaced("random", name, _always(way)))
        yield own


def _always(way: Callable[..., Any]) -> patches.Make:
    return lambda original: way
