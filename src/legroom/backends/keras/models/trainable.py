"""Which layers are trained: as it was when a step was first traced, because that is Keras's rule.

Keras reads `trainable` while it traces its function, and traces once for each kind of data: a layer
that is frozen afterwards is trained on until the model is compiled again. A guarded step is traced
more often, whenever its slices change, and each time must train what the first trace did. What the
step keeps in Python it finds as the first trace found it, too.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from legroom.backends.keras.slices.python_state import PythonState
from legroom.core.events import Note, emit

__all__ = ["as_first_traced"]


def as_first_traced(model: Any, call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A model's step that sees `trainable` as it was at its first call.

    Args:
        model: The model.
        call: Its step, which is called when it is traced.
    """
    seen: list[tuple[_Flags, PythonState]] = []

    @functools.wraps(call)
    def traced(data: Any) -> Any:
        now = PythonState(call, layers=False)
        if seen:
            flags, python = seen[0]
            python.restore()
            try:
                with flags.in_force():
                    return call(data)
            finally:
                now.restore()
        # Before the call, which may set some itself, as the step of a GAN does.
        seen.append((_Flags(model), now))
        try:
            return call(data)
        finally:
            seen[0][0].look()  # a layer that was built by the call has variables only now
            if counted := now.counted():
                emit(Note(_counts(f"{type(model).__name__}.{call.__name__}", counted)))

    return traced


def _counts(step: str, names: list[str]) -> str:
    return (
        f"{step} changes {', '.join(names)} in Python. TensorFlow runs that code only while it "
        "traces the step, and legroom traces it more often than Keras. If the step depends on it, "
        "keep it in a keras.Variable, or use run_eagerly=True"
    )


class _Flags:
    """The flags of a model's layers and their variables at one moment."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._flags: dict[int, tuple[Any, bool]] = {}
        self.look()

    def look(self) -> None:
        """Note what was not there before."""
        for layer in self._model._flatten_layers():
            for thing in (layer, *layer._trainable_variables):
                self._flags.setdefault(id(thing), (thing, thing.trainable))

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Have them hold for a while."""
        changed = [
            (thing, now, then)
            for thing, then in self._flags.values()
            if (now := thing.trainable) != then
        ]
        for thing, _, then in changed:
            # Not by its setter: a layer's own would set those of all layers in it.
            object.__setattr__(thing, "_trainable", then)
        try:
            yield
        finally:
            for thing, now, _ in changed:
                object.__setattr__(thing, "_trainable", now)
