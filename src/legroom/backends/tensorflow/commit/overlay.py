"""New values of variables, computed beside the old ones and written when all of them are there.

An optimizer moves a variable's slots before the variable itself. In an overlay its writes are
collected instead, and shown to whoever reads the variables there; what is left to do in the end
are assignments, which need no memory and can't fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras import StatelessScope
from keras.src.backend import Variable

from legroom.backends import patches
from legroom.backends.parts import OPTIMIZER

__all__ = ["Overlay"]

# From this size on a variable's new values wait for those of the one before: each has temporary
# tensors of its size, and those of all of them at once would be several times as much. Small ones
# run side by side, and so do the slots of one variable: its own value needs all of them anyway.
_LARGE = 2**20


class Overlay(StatelessScope):
    """Collects what an optimizer writes, shows it to later reads, and writes it in the end."""

    def __init__(self, optimizer: Any) -> None:
        super().__init__()
        self._optimizer = optimizer
        self._updates: dict[int, tuple[Any, Any]] = {}
        self._scatters: list[tuple[str, Any, Any]] = []
        self._hooks = contextlib.ExitStack()
        self.ready: Any = None  # when all is computed that will be written

    def add_update(self, update: tuple[Any, Any]) -> None:
        """Keep a new value."""
        super().add_update(update)
        variable, value = update
        self._updates[id(variable)] = (variable, value)
        if tf.executing_eagerly() or not variable.trainable:
            return
        if isinstance(value, tf.Tensor) and _bytes(value) >= _LARGE:
            self._hooks.enter_context(tf.control_dependencies([value]))

    def get_current_value(self, variable: Any) -> Any:
        """What a variable is read as: with what was added to some of its rows, too.

        Adagrad reads the sums that it has just added to, averages and constraints the weights. Rows
        that nobody reads again stay rows.
        """
        for scatter in [one for one in self._scatters if one[1] is variable]:
            self._scatters.remove(scatter)
            name, _, rows = scatter
            dense = tf.cast(tf.convert_to_tensor(rows), variable.dtype)
            before = variable.value
            variable.assign(before + dense if name == "assign_add" else before - dense)
        return super().get_current_value(variable)

    def __enter__(self) -> Overlay:
        super().__enter__()
        instead = {name: self._writer(name) for name in ("assign", "assign_add", "assign_sub")}
        # A variable's key must stay that of the variable, also when its new value is shown here.
        key = self._optimizer._var_key
        instead["_var_key"] = lambda v: key(v._value if isinstance(v, Variable) else v)
        for name, value in instead.items():
            shadow = patches.shadowed(self._optimizer, OPTIMIZER, name, value)
            self._hooks.enter_context(shadow)
        return self

    def __exit__(self, *error: Any) -> None:
        self._hooks.close()
        super().__exit__(*error)

    def _writer(self, name: str) -> Callable[..., Any]:
        def write(variable: Any, value: Any) -> None:
            if isinstance(value, tf.IndexedSlices):
                if name != "assign" and id(variable) not in self._updates:
                    self._scatters.append((name, variable, value))
                    return
                value = tf.convert_to_tensor(value)
            current = variable.value if name != "assign" else None
            value = tf.cast(value, variable.dtype)
            if name == "assign_add":
                value = current + value
            elif name == "assign_sub":
                value = current - value
            variable.assign(value)

        return write

    def write(self, after: Sequence[Any] = ()) -> list[Any]:
        """Write everything that was collected; nothing here needs memory.

        Args:
            after: Ops of the graph that must have run before.
        """
        values = [value for _, value in self._updates.values()]
        values += [part for *_, value in self._scatters for part in (value.values, value.indices)]
        with tf.control_dependencies([*after, *(v for v in values if isinstance(v, tf.Tensor))]):
            self.ready = tf.no_op()  # None where it is not in a graph
        with tf.control_dependencies([] if self.ready is None else [self.ready]):
            written = [
                variable._value.assign(tf.cast(value, variable._value.dtype), read_value=False)
                for variable, value in self._updates.values()
            ]
            for name, variable, value in self._scatters:
                scatter = getattr(variable.value, name.replace("assign", "scatter"))
                written.append(scatter(tf.cast(value, variable.dtype)))
        return [op for op in written if op is not None]


def _bytes(value: Any) -> int:
    count = value.shape.num_elements()
    return 0 if count is None else int(count) * int(value.dtype.size)
