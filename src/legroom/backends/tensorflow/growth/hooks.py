"""Hooks that note what is made while a loop is watched: traces of functions, and data sets.

They are in place only while something is watched, and are called only when a function is traced
or a data set is made: a step that does neither pays nothing for them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import keras

from legroom.backends import patches
from legroom.backends.keras.input.fit_calls import user_place
from legroom.backends.parts import DATASET, FUNCTION, TRAINER

__all__ = ["Follower", "Made", "Recorder", "TensorLines", "Trace"]

# Identities are used again once a model is gone; these are not.
_serials: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_numbers = itertools.count()


@dataclasses.dataclass
class Trace:
    """One trace of a `tf.function`.

    Attributes:
        name: The Python function's name.
        place: Where it is defined.
        family: The same for all traces of one function object.
        arguments: The type of each argument, as text.
        compiled: Whether XLA compiles it.
        model: The name and identity of the Keras model it belongs to, for Keras's own.
        alive: Tells whether the trace still exists.
    """

    name: str
    place: str
    family: int
    arguments: dict[str, str]
    compiled: bool
    model: tuple[str, int] | None
    alive: Callable[[], Any]


@dataclasses.dataclass
class Made:
    """One data set that a script made."""

    kind: str
    place: str


class Follower(Protocol):
    """Who is told of calls that are long: of `fit`, and of every `tf.function`."""

    def call_begins(self) -> bool:
        """One begins; what this returns is given back when it has ended."""

    def call_ended(self, paused: bool, /) -> None:
        """It has ended."""

    def training(self, place: str, /) -> contextlib.AbstractContextManager[None]:
        """Put around each `fit`, made with the line that called it."""


class Recorder:
    """Notes traces and data sets while it is switched on.

    Args:
        follower: Who is told of calls that are long.
    """

    def __init__(self, follower: Follower) -> None:
        self._follower = follower
        self.traces: list[Trace] = []
        self.datasets: list[Made] = []

    def start(self) -> None:
        """Put the hooks in place."""
        compilation = "tensorflow.python.eager.polymorphic_function.tracing_compilation"
        patches.put(
            self,
            compilation,
            "_create_concrete_function",
            lambda original: functools.partial(self._tracing, original),
        )
        self._wrap(DATASET, "__init__", self._making)
        for name in ("evaluate", "predict", "train_on_batch", "test_on_batch"):
            self._wrap(TRAINER, name, self._calling)
        self._wrap(TRAINER, "fit", self._fitting)
        patches.put(self, FUNCTION, "__call__", self._followed)

    def stop(self) -> None:
        """Take the hooks away."""
        patches.take_off(self)

    def _wrap(self, owner: str, name: str, wrapper: Callable[..., Any]) -> None:
        def make(original: Callable[..., Any]) -> Callable[..., Any]:
            def hooked(this: Any, *args: Any, **kwargs: Any) -> Any:
                return wrapper(this, original, *args, **kwargs)

            return hooked

        patches.put(self, owner, name, make)

    def _followed(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same as `_calling`, for what is called at every step: as little as can be."""
        begins, ended = self._follower.call_begins, self._follower.call_ended

        def hooked(this: Any, *args: Any, **kwargs: Any) -> Any:
            paused = begins()
            try:
                return original(this, *args, **kwargs)
            finally:
                ended(paused)

        return hooked

    def _tracing(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        traced = original(*args, **kwargs)
        with contextlib.suppress(Exception):  # a note is missed; the training is not
            self.traces.append(_describe(traced, *args, **kwargs))
        return traced

    def _calling(self, owner: Any, original: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        paused = self._follower.call_begins()
        try:
            return original(owner, *args, **kw)
        finally:
            self._follower.call_ended(paused)

    def _fitting(self, owner: Any, original: Callable[..., Any], *args: Any, **kw: Any) -> Any:
        with self._follower.training(user_place() or "fit"):
            return self._calling(owner, original, *args, **kw)

    def _making(self, dataset: Any, original: Callable[..., Any], *args: Any, **kw: Any) -> None:
        original(dataset, *args, **kw)
        place = user_place(direct=True)
        if place is not None and threading.current_thread() is threading.main_thread():
            self.datasets.append(Made(type(dataset).__name__, place))


class TensorLines:
    """Notes which line of the user's made each tensor, while it is switched on.

    Every eager op goes through one of two functions of TensorFlow's; they are wrapped for the few
    iterations in which someone wants to know.
    """

    def __init__(self) -> None:
        self._lines: dict[int, tuple[Any, str]] = {}

    def start(self) -> None:
        """Begin to note lines."""
        for name in ("TFE_Py_FastPathExecute", "TFE_Py_Execute"):
            patches.put(self, "tensorflow.python.pywrap_tfe", name, self._noting)

    def stop(self) -> None:
        """Note no more; what was noted stays."""
        patches.take_off(self)

    def line_of(self, tensor: Any) -> str:
        """The line that made a tensor, or nothing."""
        kept, line = self._lines.get(id(tensor), (None, ""))
        return line if kept is not None and kept() is tensor else ""

    def alive(self, weigh: Callable[[Any], Any]) -> dict[str, tuple[int, int]]:
        """How many tensors of each line are still there, and their bytes.

        Args:
            weigh: Says what a tensor is, and weighs.
        """
        found: dict[str, tuple[int, int]] = {}
        for kept, line in list(self._lines.values()):
            weight = weigh(kept())
            if line and weight is not None:
                count, size = found.get(line, (0, 0))
                found[line] = (count + 1, size + weight[1])
        return found

    def _noting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def execute(*args: Any) -> Any:
            results = original(*args)
            for result in results if isinstance(results, (list, tuple)) else (results,):
                with contextlib.suppress(TypeError):  # None, or something that can't be referred to
                    self._note(result)
            return results

        return execute

    def _note(self, tensor: Any) -> None:
        key = id(tensor)

        def forget(_: Any) -> None:
            self._lines.pop(key, None)

        self._lines[key] = (weakref.ref(tensor, forget), user_place() or "")


def _describe(
    traced: Any, function_type: Any, type_context: Any, func_graph: Any, options: Any
) -> Trace:
    del type_context, func_graph
    function = options.python_function
    code = getattr(_unwrapped(function), "__code__", None)
    attributes = options.attributes or {}
    return Trace(
        name=getattr(_unwrapped(function), "__qualname__", options.name),
        place=f"{code.co_filename}:{code.co_firstlineno}" if code is not None else "",
        family=id(traced if options.function_cache is None else options.function_cache),
        arguments={
            name: _short(getattr(parameter, "type_constraint", None))
            for name, parameter in function_type.parameters.items()
        },
        compiled=bool(attributes.get("_XlaMustCompile")),
        model=_model_of(function),
        alive=weakref.ref(traced),
    )


def _short(constraint: Any) -> str:
    """A type as people write it."""
    target = getattr(constraint, "_ref", None)
    if target is not None:  # a Python object: another one is another type
        target = target()
        name = getattr(target, "__qualname__", type(target).__name__).rpartition(">.")[2]
        return f"{name} at {id(target):#x}"
    shape, dtype = getattr(constraint, "shape", None), getattr(constraint, "dtype", None)
    if shape is not None and dtype is not None:
        return f"{getattr(dtype, 'name', dtype)}{tuple(shape) if shape.rank is not None else '?'}"
    return str(constraint)[:120]


def _unwrapped(function: Any) -> Any:
    """The user's function, below the wrappers that TensorFlow and Keras put around it."""
    for _ in range(10):
        inner = getattr(function, "__wrapped__", None) or getattr(function, "python_function", None)
        if inner is None or inner is function:
            break
        function = inner
    return function


def _model_of(function: Any) -> tuple[str, int] | None:
    """The Keras model whose step this is, found in what the function has from its makers."""
    seen: set[int] = set()
    todo = [(function, 0)]
    while todo:
        value, depth = todo.pop()
        if id(value) in seen or depth > 6:
            continue
        seen.add(id(value))
        if isinstance(value, keras.Model):
            return value.name, _serials.setdefault(value, next(_numbers))
        todo += [(inner, depth + 1) for inner in _inside(value)]
    return None


def _inside(value: Any) -> Iterator[Any]:
    for name in ("__wrapped__", "__self__", "python_function", "__func__"):
        inner = getattr(value, name, None)
        if inner is not None:
            yield inner
    for cell in getattr(value, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            content = cell.cell_contents
            if callable(content) or isinstance(content, keras.Model):
                yield content
