"""What a step remembers in Python: a counter, a list of losses, a flag.

TensorFlow runs a traced step without its Python. A step that is run eagerly may count its calls and
go by the count, and slices would call it more often than the whole batch does. So what can be
reached from its code is looked at before and after: plain values in attributes of its object, in
the variables of the function around it, in globals that it names, and in layers of the user's own.
So are generators of random numbers, which are told apart: slices may draw on where the one before
them ended.
"""

from __future__ import annotations

import collections
import functools
import inspect
import io
import random
import sys
import types
from collections.abc import Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

import numpy as np

from legroom.backends.careful import is_users_file

__all__ = ["PythonState", "iterators", "unbuilt"]

_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_DEEPEST = 3
_MOST_ENTRIES = 10_000
_LARGE = 2**20  # bytes of a tensor that are not copied, so not put back
# Objects of these packages look after their own state.
_FOREIGN = frozenset(
    {"keras", "tensorflow", "torch", "numpy", "builtins", "threading", "legroom", "pandas"}
)

_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator)

# A place whose value may be another one later: its name, how it is read, how it is put back.
_Place = tuple[str, Callable[[], Any], Callable[[Any], None], Any]


class PythonState:
    """The plain values that a function can reach, as they are now.

    Args:
        function: The function, or a method of an object.
        *others: What it is called with.
        layers: Look into all layers of models, too.
        arguments: Those of its arguments that it may count in or append to, by name.
    """

    def __init__(
        self,
        function: Any,
        *others: Any,
        layers: bool = True,
        arguments: Sequence[tuple[str, Any]] = (),
    ) -> None:
        seen: set[int] = set()
        self._places = list(_places(function, seen))
        for name, value in arguments:
            if not (isinstance(value, _PLAIN) or _is_plain_tuple(value)):
                self._places += _of_value(name, value, _reader(value), _ignore, 0, seen)
        if layers:
            self._places += _of_layers([*_reached(function), *others], seen)

    def changed(self) -> list[str]:
        """The names of what is another one now, beside generators and tensors."""
        return [name for name, _, before, now in self._changes() if not _is_state(before, now)]

    def moved(self) -> list[str]:
        """The names of the generators that were drawn from."""
        return [name for name, _, before, _ in self._changes() if isinstance(before, _State)]

    def drawn(self) -> dict[str, str]:
        """Where the generators are that were drawn from."""
        return {
            name: repr(now.state)
            for name, _, before, now in self._changes()
            if isinstance(before, _State)
        }

    def carried(self) -> list[str]:
        """The names of what holds other tensors now: to be used next time, or only looked at."""
        return [name for name, _, before, now in self._changes() if _has_tensors(before, now)]

    def counted(self) -> list[str]:
        """The names of numbers that are others now."""
        return [name for name, _, before, _ in self._changes() if type(before) in (int, float)]

    def restore(self) -> list[str]:
        """Put back what has changed.

        Returns:
            The names of what had, beside generators and tensors.
        """
        changes = self._changes()
        for _, put_back, before, _ in changes:
            put_back(before)
        return [name for name, _, before, now in changes if not _is_state(before, now)]

    def _changes(self) -> list[tuple[str, Callable[[Any], None], Any, Any]]:
        found = []
        for name, read, put_back, before in self._places:
            try:
                now = _copy(read())
            except (KeyError, AttributeError, ValueError):
                now = None
            # A layer or a variable that a step makes when it first runs is there to stay.
            kept = isinstance(before, (_State, _Filled)) or not _has_objects(now)
            if not _same(now, before) and kept:
                found.append((name, put_back, before, now))
        return found


def _reader(value: Any) -> Callable[[], Any]:
    return lambda: value


def _ignore(old: Any) -> None:
    """An argument is handed over anew each time."""


def _keras() -> Any:
    """Keras, where it is imported: a loop in plain PyTorch goes without."""
    return sys.modules.get("keras")


def _is_layer(thing: Any) -> bool:
    keras = _keras()
    return keras is not None and isinstance(thing, keras.Layer)


@functools.cache
def _of_keras() -> frozenset[str]:
    """What Keras itself keeps in the attributes of a model."""
    keras = _keras()
    made = vars(keras.Sequential(name="legroom_names"))
    return frozenset({*made, *dir(keras.Model), "_tracker", "stop_training"})


def unbuilt(function: Any, *others: Any) -> bool:
    """Whether a function can reach a layer that is not built yet.

    Args:
        function: The function, or a method of an object.
        *others: What it is called with.
    """
    return any(not layer.built for layer in _all_layers([*_reached(function), *others]))


def iterators(function: Any, arguments: Sequence[tuple[str, Any]] = ()) -> list[str]:
    """The names of iterators that a function can take from: what is taken can't be put back.

    Args:
        function: The function, or a method of an object.
        arguments: What it is called with, by name.
    """
    owner = getattr(function, "__self__", None)
    found = {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
    for name, thing in arguments:
        found[name] = thing
        if _is_users_own(thing):
            found |= {f"{name}.{k}": value for k, value in getattr(thing, "__dict__", {}).items()}
    code = inspect.unwrap(getattr(function, "__func__", function))
    if isinstance(code, types.FunctionType):
        named = inspect.getclosurevars(code)
        found |= {**named.globals, **named.nonlocals}
    return [
        name
        for name, value in found.items()
        if isinstance(value, Iterator)
        and not isinstance(value, io.IOBase)
        and type(value).__module__.partition(".")[0] != "keras"  # which looks after its own
    ]


def _reached(function: Any) -> list[Any]:
    """What a function can reach at once: its object, that one's attributes, what it names."""
    code = inspect.unwrap(getattr(function, "__func__", function))
    owner = getattr(function, "__self__", None)
    things = [owner, *vars(owner).values()] if hasattr(owner, "__dict__") else []
    if isinstance(code, types.FunctionType):
        named = inspect.getclosurevars(code)
        things += [*named.nonlocals.values(), *named.globals.values()]
    return things


def _all_layers(things: list[Any]) -> Iterator[Any]:
    """The layers among some things, with those inside of them; some may come twice."""
    for thing in things:
        if _is_layer(thing):
            yield from thing._flatten_layers()


def _of_layers(things: list[Any], seen: set[int]) -> Iterator[_Place]:
    for layer in _all_layers(things):
        if _is_users_own(layer):  # Keras's own ones keep what they remember in variables
            yield from _of_object(layer.name, layer, 0, seen)


def _places(function: Any, seen: set[int], depth: int = 0) -> Iterator[_Place]:
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, types.ModuleType):
        yield from _of_object("self", owner, 0, seen)
    code = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(code, types.FunctionType):
        return
    for name, cell in zip(code.__code__.co_freevars, code.__closure__ or (), strict=True):
        try:
            value = cell.cell_contents
        except ValueError:  # not yet bound
            continue
        yield from _of_cell(name, value, cell, seen)
        yield from _of_helper(value, depth, seen)
    for name in _names(code.__code__):
        if name in code.__globals__:
            yield from _of_item(name, code.__globals__, name, 0, seen)
            yield from _of_helper(code.__globals__[name], depth, seen)


def _of_helper(value: Any, depth: int, seen: set[int]) -> Iterator[_Place]:
    """What a function of the user's remembers that the step calls."""
    function = getattr(value, "__func__", value)
    if not isinstance(function, types.FunctionType) or id(function) in seen or depth >= _DEEPEST:
        return
    if is_users_file(function.__code__.co_filename):
        seen.add(id(function))
        yield from _places(value, seen, depth + 1)


def _of_cell(name: str, value: Any, cell: Any, seen: set[int]) -> Iterator[_Place]:
    def put_back(old: Any) -> None:
        cell.cell_contents = old

    yield from _of_value(name, value, lambda: cell.cell_contents, put_back, 0, seen)


def _names(code: types.CodeType) -> set[str]:
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names |= _names(inner)
    return names


def _of_object(name: str, thing: Any, depth: int, seen: set[int]) -> Iterator[_Place]:
    attributes = getattr(thing, "__dict__", None)
    if id(thing) in seen or not isinstance(attributes, dict):
        return
    of_keras = _is_layer(thing)
    if of_keras and not thing.built and not isinstance(thing, _keras().Model):
        return  # what it learns when it is built must stay
    seen.add(id(thing))
    for attribute, value in list(attributes.items()):
        if of_keras and (attribute in _of_keras() or attribute.startswith("_self_")):
            continue  # TensorFlow's tracking begins with "_self_"
        if _is_module(thing) and (attribute.startswith("_") or attribute == "training"):
            continue  # PyTorch's own

        def read(thing: Any = thing, attribute: str = attribute) -> Any:
            return vars(thing)[attribute]

        def put_back(old: Any, thing: Any = thing, attribute: str = attribute) -> None:
            object.__setattr__(thing, attribute, old)

        yield from _of_value(f"{name}.{attribute}", value, read, put_back, depth, seen)


def _of_item(
    name: str, container: MutableMapping[Any, Any], key: Any, depth: int, seen: set[int]
) -> Iterator[_Place]:
    def put_back(old: Any) -> None:
        container[key] = old

    yield from _of_value(name, container[key], lambda: container[key], put_back, depth, seen)


def _of_value(
    name: str,
    value: Any,
    read: Callable[[], Any],
    put_back: Callable[[Any], None],
    depth: int,
    seen: set[int],
) -> Iterator[_Place]:
    if isinstance(value, _PLAIN) or _is_plain_tuple(value):
        yield name, read, put_back, value
    elif isinstance(value, _GENERATORS):
        if id(value) not in seen:
            seen.add(id(value))
            yield name, lambda: _State.of(value), _State.put_back, _State.of(value)
    elif isinstance(value, (list, dict, set, collections.deque, np.ndarray)):
        if isinstance(value, np.ndarray) and value.dtype.kind not in "biufc":
            return
        if (value.size if isinstance(value, np.ndarray) else len(value)) > _MOST_ENTRIES:
            return
        yield name, lambda: value, lambda old: _refill(value, old), _copy(value)
        if isinstance(value, (list, collections.deque)):
            for number, entry in enumerate(value):
                yield from _written_inside(f"{name}[{number}]", entry)
        if isinstance(value, dict) and depth < _DEEPEST:
            for key, entry in list(value.items()):
                if not isinstance(entry, _PLAIN):
                    yield from _of_item(f"{name}[{key!r}]", value, key, depth + 1, seen)
    elif _is_tensor(value):
        yield name, read, put_back, value
        yield from _written_inside(name, value)
    elif _is_module(value):
        yield from _of_modules(name, value, seen)
    elif depth < _DEEPEST and _is_users_own(value):
        yield from _of_object(name, value, depth + 1, seen)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module) and not _is_layer(value)


def _of_modules(name: str, module: Any, seen: set[int]) -> Iterator[_Place]:
    """What modules of the user's own remember beside parameters and buffers."""
    for path, inner in module.named_modules():
        if type(inner).__module__.partition(".")[0] not in _FOREIGN:
            yield from _of_object(f"{name}.{path}" if path else name, inner, _DEEPEST, seen)


def _written_inside(name: str, value: Any) -> Iterator[_Place]:
    """A tensor whose values may be others later: PyTorch's can be written."""
    torch = sys.modules.get("torch")
    if torch is not None and _is_tensor(value) and isinstance(value, torch.Tensor):
        yield name, lambda: _Filled(value), _Filled.put_back, _Filled(value, copy=True)


class _Filled:
    """What a tensor of PyTorch's holds."""

    def __init__(self, tensor: Any, *, copy: bool = False) -> None:
        self.tensor, self.version = tensor, tensor._version
        small = copy and tensor.nbytes <= _LARGE
        self._values = tensor.detach().clone() if small else None

    def put_back(self) -> None:
        if self._values is not None:
            self.tensor.detach().copy_(self._values)


class _State:
    """What a generator draws next."""

    def __init__(self, generator: Any, state: Any) -> None:
        self.generator, self.state = generator, state

    @classmethod
    def of(cls, generator: Any) -> _State:
        if isinstance(generator, random.Random):
            return cls(generator, generator.getstate())
        if isinstance(generator, np.random.Generator):
            return cls(generator, generator.bit_generator.state)
        return cls(generator, generator.get_state(legacy=False))

    def put_back(self) -> None:
        if isinstance(self.generator, random.Random):
            self.generator.setstate(self.state)
        elif isinstance(self.generator, np.random.Generator):
            self.generator.bit_generator.state = self.state
        else:
            self.generator.set_state(self.state)


def _is_state(before: Any, now: Any) -> bool:
    """Whether a change is one of a generator, or of tensors."""
    return isinstance(before, _State) or _has_tensors(before, now)


def _has_tensors(before: Any, now: Any) -> bool:
    """Whether a change is one of tensors, by themselves or in a container."""
    if isinstance(before, _Filled):
        return True
    if isinstance(now, (list, tuple, collections.deque)):
        return any(map(_is_tensor, _flat(now)))
    if isinstance(now, dict):
        return any(map(_is_tensor, _flat(now.values())))
    return _is_tensor(now) or _is_tensor(before)


def _flat(entries: Iterable[Any]) -> Iterator[Any]:
    for entry in entries:
        if isinstance(entry, (list, tuple)):
            yield from _flat(entry)
        else:
            yield entry


def _is_plain_tuple(value: Any) -> bool:
    return type(value) is tuple and all(isinstance(entry, _PLAIN) for entry in value)


def _is_users_own(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, types.FunctionType, types.MethodType)):
        return False
    if _is_layer(value):
        return type(value).__module__.partition(".")[0] not in _FOREIGN
    # Not what is derived from theirs either: an optimizer that is built must not be unbuilt.
    packages = {kind.__module__.partition(".")[0] for kind in type(value).__mro__[:-1]}
    return not packages & _FOREIGN


def _copy(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, (list, dict, set, collections.deque)):
        return type(value)(value) if type(value) in (list, dict, set, collections.deque) else (
            dict(value) if isinstance(value, dict) else list(value)
        )  # fmt: skip
    return value


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor, which a step carries on; a variable is there to stay."""
    torch, tensorflow = sys.modules.get("torch"), sys.modules.get("tensorflow")
    if torch is not None and isinstance(value, torch.Tensor):
        return not isinstance(value, torch.nn.Parameter)
    return tensorflow is not None and isinstance(value, tensorflow.Tensor)


def _has_objects(value: Any) -> bool:
    """Whether a value is, or holds, something else than plain values and tensors."""
    if isinstance(value, (*_PLAIN, np.ndarray)) or _is_tensor(value):
        return False
    if isinstance(value, dict):
        return any(map(_has_objects, value.values()))
    if isinstance(value, (list, tuple, set, collections.deque)):
        return any(map(_has_objects, value))
    return True


def _refill(container: Any, old: Any) -> None:
    """Put a container's entries back, into the same object: others may hold it."""
    if isinstance(container, np.ndarray):
        container[...] = old
        return
    container.clear()
    (container.extend if isinstance(container, (list, collections.deque)) else container.update)(
        old
    )


def _same(now: Any, before: Any) -> bool:
    """Whether nothing has changed; entries that are not plain are compared by identity."""
    if isinstance(before, _State):
        return isinstance(now, _State) and _same(now.state, before.state)
    if isinstance(before, _Filled):
        return isinstance(now, _Filled) and now.version == before.version
    if isinstance(before, np.ndarray):
        return isinstance(now, np.ndarray) and np.array_equal(now, before, equal_nan=True)
    if isinstance(before, dict):
        return (
            isinstance(now, dict)
            and now.keys() == before.keys()
            and all(_same(now[key], before[key]) for key in before)
        )
    if isinstance(before, (list, collections.deque, tuple)):
        alike = isinstance(now, type(before)) and len(now) == len(before)
        return alike and all(map(_same, now, before))
    if isinstance(before, (*_PLAIN, set)):
        return now is before or (type(now) is type(before) and bool(now == before))
    return now is before
