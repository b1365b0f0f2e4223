"""Who takes part in a step: whose state it changes, and how that is found and copied."""

from __future__ import annotations

import collections
import contextlib
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import LRScheduler

from legroom.backends.torch.state.training_state import own_tensors
from legroom.backends.torch.step.reach import reachable, used_keras
from legroom.backends.torch.step.tail import Written

__all__ = ["KerasModel", "Participants", "PlainLoop", "small_variables"]


class Participants(Protocol):
    """Whose state a step changes."""

    @property
    def device(self) -> torch.device:
        """Where it trains."""
        ...

    @property
    def has_grown(self) -> bool:
        """Whether there is more of that than when it was last asked for."""
        ...

    def small_state(self) -> list[Any]:
        """Tensors that it may change before its update."""
        ...

    def seeds(self) -> list[Any]:
        """Those of them that are seeds of Keras's layers."""
        ...

    def parameters(self) -> Iterable[Any]:
        """What has gradients."""
        ...

    def weights(self) -> Iterable[Any]:
        """What only an update may write: also weights that have no gradients."""
        ...

    def written(self, optimizer: Any) -> Written:
        """A copy of what its update writes."""
        ...

    @property
    def updates_early(self) -> bool:
        """Whether weights may move while gradients are computed."""
        ...

    def numbers_as_now(self) -> Callable[[], None]:
        """Puts back what optimizers and schedulers keep in Python, and takes away new slots."""
        ...

    def numbers_aside(self) -> contextlib.AbstractContextManager[None]:
        """What optimizers, schedulers and scalers keep in Python, as now at the end of it."""
        ...

    def forget_failed(self) -> None:
        """Put right what a failed step left in Python."""
        ...

    def rebind(self) -> None:
        """Put the tensors of `small_state` where they were, and others in their place aside."""
        ...

    def names(self) -> dict[int, str]:
        """What modules are called, by their ids."""
        ...

    def generators(self) -> list[Any]:
        """Generators of random numbers of its own."""
        ...

    def as_slice(self, data: Any) -> Any:
        """A slice of a batch as it can be handed to the step."""
        ...


class KerasModel:
    """A Keras model, with its optimizer and metrics."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self._had_shared_seed = True

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        variables = self.model.variables
        if variables:
            return variables[0].value.device
        from legroom.backends.torch.device.pool import default_device

        return default_device()

    def small_variables(self) -> list[Any]:
        """Keras's variables that a step may change before its update.

        A layer's weights are not among them, frozen or not.
        """
        return small_variables(self.model._flatten_layers(), self.model.metrics_variables)

    @property
    def has_grown(self) -> bool:
        """Whether the seed that layers share was made since the small state was asked for."""
        from legroom.backends.keras.state.training_variables import global_seed_variable

        return not self._had_shared_seed and global_seed_variable() is not None

    def small_state(self) -> list[Any]:
        """Tensors that it may change before its update."""
        from legroom.backends.keras.state.training_variables import global_seed_variable

        self._had_shared_seed = global_seed_variable() is not None
        return [*_tensors(self.small_variables()), *own_tensors(self.model)]

    def seeds(self) -> list[Any]:
        """The seeds of its layers."""
        return _seeds(self.small_variables())

    def parameters(self) -> Iterable[Any]:
        """What has gradients; Keras has all variables as parameters."""
        return _tensors(self.model.trainable_variables)

    def weights(self) -> Iterable[Any]:
        """The weights of its layers, frozen or not."""
        small = {id(v) for v in self.small_variables()}
        return _tensors(v for v in self.model.variables if id(v) not in small)

    @property
    def updates_early(self) -> bool:
        """Whether weights may move while gradients are computed: optimizers of Keras do not."""
        return False

    def written(self, optimizer: Any) -> Written:
        """A copy of what its update writes, and what may be written after it."""
        return Written(_tensors([*self.model.variables, *_variables_of(optimizer)]))

    def numbers_as_now(self) -> Callable[[], None]:
        """Keras keeps all that in variables."""
        return lambda: None

    def numbers_aside(self) -> contextlib.AbstractContextManager[None]:
        """Optimizers of Keras keep everything in variables."""
        return contextlib.nullcontext()

    def forget_failed(self) -> None:
        """Losses that layers added in a step that failed are not the next one's."""
        self.model._clear_losses()
        if self.has_grown:
            from legroom.backends.keras.state.training_variables import global_seed_variable

            with torch.no_grad():
                global_seed_variable()._value[1] = 0  # nothing was drawn by it yet

    def rebind(self) -> None:
        """Keras's variables stay the same ones."""

    def names(self) -> dict[int, str]:
        """What layers are called, by their ids."""
        return {id(layer): layer.name for layer in self.model._flatten_layers()}

    def generators(self) -> list[Any]:
        """Layers of Keras keep their seeds in variables."""
        return []

    @property
    def has_own_step(self) -> bool:
        """Whether it trains by the step of Keras, which is known."""
        return type(self.model).train_step.__module__.startswith("keras.")

    @property
    def overwrites(self) -> bool:
        """Whether it has weights that are written over with their gradient."""
        return any(getattr(v, "overwrite_with_gradient", False) for v in self.model.variables)

    def as_slice(self, data: Any) -> Any:
        """A slice of a batch as it can be handed to the step.

        Keras takes as many targets as there are outputs for one target each; in a tuple they are
        what they are. A whole batch is left as it is, for Keras to take as it does.
        """
        outputs = getattr(self.model, "outputs", None) or ()
        if self.has_own_step and len(outputs) > 1 and isinstance(data, tuple) and len(data) > 1:
            x, y, *rest = data
            if isinstance(y, torch.Tensor) and len(y) == len(outputs):
                return (x, (y,), *rest)
        return data


def small_variables(layers: Iterable[Any], more: Iterable[Any]) -> list[Any]:
    """Keras's variables that a step may change before its update: no weights.

    Args:
        layers: The layers that take part.
        more: Variables of metrics, and others.
    """
    from legroom.backends.keras.state.training_variables import global_seed_variable

    layers = list(layers)
    found = [v for layer in layers for v in layer._non_trainable_variables]
    found += [
        generator.state for layer in layers for generator in getattr(layer, "_seed_generators", ())
    ]
    # To make the seed that layers share draws a random number: only if it is there already.
    shared = global_seed_variable()
    found += [*([] if shared is None else [shared]), *more]
    return list({id(v): v for v in found}.values())


def _tensors(variables: Iterable[Any]) -> list[Any]:
    """The tensors behind variables of Keras, but for those that are not made yet."""
    return [v._value for v in variables if v._value is not None]


def _seeds(variables: Iterable[Any]) -> list[Any]:
    return _tensors(v for v in variables if "seed_generator_state" in v.name)


def _variables_of(optimizer: Any) -> list[Any]:
    """What an optimizer of Keras keeps."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *([] if inner is None else inner.variables)]


class PlainLoop:
    """The modules and optimizers that a function reaches.

    Args:
        function: The step.
        others: What it is called with.
    """

    def __init__(self, function: Any, others: Any) -> None:
        # Where buffers are: in which module's, by which name.
        self._buffers: list[tuple[dict[str, Any], str, Any]] = []
        found = reachable(function, others)
        weights = [p for x in found if isinstance(x, torch.nn.Module) for p in x.parameters()]
        hooks = [hook for p in weights for hook in (_early_hooks(p) or {}).values()]
        # Whether a hook acts on gradients as soon as they are there: an optimizer's step, say.
        self.updates_early = bool(hooks)
        found += [x for x in reachable(hooks) if all(x is not known for known in found)]
        self._found = _Held(found)
        self._adopted = False  # others, since the small state was asked for

    def adopt(self, things: Iterable[Any]) -> None:
        """Others take part, too: they were seen when the step ran."""
        things = list(things)
        self._found.extend(things)
        self._adopted = self._adopted or bool(things)

    def buffers(self) -> Iterator[tuple[str, Any, Any]]:
        """Whose buffers there were when the small state was asked for, and what is there now."""
        names = self.names()
        homes = {
            id(inner._buffers): names[id(inner)]
            for module in self.modules
            for inner in module.modules()
        }
        for home, name, tensor in self._buffers:
            yield homes.get(id(home), name), tensor, home.get(name)

    @property
    def modules(self) -> list[Any]:
        """The modules."""
        return self._found.of(torch.nn.Module)

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers of PyTorch."""
        return self._found.of(torch.optim.Optimizer)

    @property
    def _schedulers(self) -> list[Any]:
        return self._found.of(LRScheduler)

    @property
    def _scalers(self) -> list[Any]:
        return self._found.of(torch.amp.GradScaler)

    # Those of Keras, which may be used without its trainer.

    @property
    def _layers(self) -> list[Any]:
        keras = used_keras()
        layers = [] if keras is None else self._found.of(keras.Layer)
        return [inner for x in layers for inner in x._flatten_layers()]

    @property
    def _metrics(self) -> list[Any]:
        keras = used_keras()
        return [] if keras is None else self._found.of(keras.metrics.Metric)

    @property
    def _appliers(self) -> list[Any]:
        keras = used_keras()
        return [] if keras is None else self._found.of(keras.optimizers.Optimizer)

    def generators(self) -> list[Any]:
        """Generators of random numbers of its own."""
        return self._found.of(torch.Generator)

    @property
    def has_grown(self) -> bool:
        """Whether a step has put other tensors in the place of buffers."""
        return self._adopted or any(
            home.get(name) is not tensor for home, name, tensor in self._buffers
        )

    @property
    def device(self) -> torch.device:
        """Where the first weight is."""
        for parameter in self.parameters():
            return parameter.device
        from legroom.backends.torch.device.pool import default_device

        return default_device()

    def small_state(self) -> list[Any]:
        """Buffers, and the scale of half precision."""
        self._adopted = False
        self._buffers = [
            (inner._buffers, name, tensor)
            for module in self.modules
            for inner in module.modules()
            for name, tensor in inner._buffers.items()
            if tensor is not None
        ]
        buffers = [tensor for _, _, tensor in self._buffers]
        scales = [x for scaler in self._scalers for x in _scale_of(scaler) if x is not None]
        return [*buffers, *scales, *_tensors(self._small_variables())]

    def _small_variables(self) -> list[Any]:
        if not self._layers and not self._metrics:
            return []
        return small_variables(self._layers, [v for x in self._metrics for v in x.variables])

    def seeds(self) -> list[Any]:
        """Those of Keras's layers: PyTorch's own generator is looked after apart."""
        return _seeds(self._small_variables())

    def parameters(self) -> Iterable[Any]:
        """What has gradients."""
        seen: set[int] = set()
        groups = [
            group["params"] for optimizer in self.optimizers for group in optimizer.param_groups
        ]
        for parameter in (
            *(p for module in self.modules for p in module.parameters()),
            *(p for group in groups for p in group),
        ):
            if id(parameter) not in seen:
                seen.add(id(parameter))
                yield parameter

    def weights(self) -> Iterable[Any]:
        """Those with gradients, and those without; Keras has all variables as parameters."""
        small = {id(tensor) for tensor in self.small_state()}
        return [p for p in self.parameters() if id(p) not in small]

    def written(self, optimizer: Any) -> Written:
        """A copy of what its updates write."""
        if all(optimizer is not one for one in (None, *self.optimizers, *self._appliers)):
            self.adopt([optimizer])
        tensors = [*self.parameters(), *self.small_state()]
        tensors += _tensors(v for one in self._appliers for v in _variables_of(one))
        tensors += [
            value
            for one in self.optimizers
            for slots in one.state.values()
            for value in slots.values()
            if isinstance(value, torch.Tensor)
        ]
        return Written(tensors, self.numbers_as_now())

    def numbers_as_now(self) -> Callable[[], None]:
        """Puts back what optimizers and schedulers keep in Python, and takes away new slots."""
        undo = [_optimizer_as_now(one) for one in self.optimizers]
        undo += [_attributes_as_now(scheduler) for scheduler in self._schedulers]
        undo += [_scaler_as_now(scaler) for scaler in self._scalers]

        def put_back() -> None:
            for one in undo:
                one()

        return put_back

    @contextlib.contextmanager
    def numbers_aside(self) -> Iterator[None]:
        """What optimizers, schedulers and scalers keep in Python, as now at the end of it."""
        undo = [_optimizer_as_now(one) for one in self.optimizers]
        undo += [_attributes_as_now(scheduler) for scheduler in self._schedulers]
        states = [(x, x._per_optimizer_states) for x in self._scalers if x.is_enabled()]
        self.forget_failed()
        try:
            yield
        finally:
            for one in undo:
                one()
            for scaler, state in states:
                scaler._per_optimizer_states = state

    def forget_failed(self) -> None:
        """A scaler that has unscaled for an update that was not made can do it again."""
        for scaler in self._scalers:
            if scaler.is_enabled():
                states = scaler._per_optimizer_states
                scaler._per_optimizer_states = collections.defaultdict(states.default_factory)

    def rebind(self) -> None:
        """Put buffers where they were: `self.center = 0.9 * self.center` makes another one."""
        for home, name, tensor in self._buffers:
            home[name] = tensor

    def names(self) -> dict[int, str]:
        """What modules are called inside of those that the step reaches, by their ids."""
        found: dict[int, str] = {}
        for module in self.modules:
            for name, inner in module.named_modules():
                kind = type(inner).__name__
                found.setdefault(id(inner), f"{name} ({kind})" if name else kind)
        return found

    def as_slice(self, data: Any) -> Any:
        """A slice of a batch: like the batch."""
        return data


class _Held:
    """Things that may go: a training that is over is not kept by those who looked after it."""

    def __init__(self, things: Iterable[Any]) -> None:
        self._references: list[Callable[[], Any]] = []
        self.extend(things)

    def extend(self, things: Iterable[Any]) -> None:
        """Hold others, too."""
        for thing in things:
            try:
                self._references.append(weakref.ref(thing))
            except TypeError:
                self._references.append(functools.partial(_same, thing))

    def of(self, kind: type) -> list[Any]:
        """Those of a kind that are still there."""
        return [x for reference in self._references if isinstance(x := reference(), kind)]


def _same(thing: Any) -> Any:
    return thing


def _early_hooks(parameter: Any) -> Any:
    return getattr(parameter, "_post_accumulate_grad_hooks", None)


def _optimizer_as_now(optimizer: Any) -> Callable[[], None]:
    """Puts an optimizer's numbers back, and takes away slots that are born from now on."""
    slots = {parameter: dict(kept) for parameter, kept in optimizer.state.items()}
    groups = [
        {name: value for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]

    def put_back() -> None:
        for parameter in list(optimizer.state):
            if parameter in slots:
                optimizer.state[parameter] = slots[parameter]
            else:
                del optimizer.state[parameter]
        for group, values in zip(optimizer.param_groups, groups, strict=False):
            group.update(values)

    return put_back


def _scale_of(scaler: Any) -> tuple[Any, Any]:
    """The scale and how long it has held; None before the first step, and where it is off."""
    return getattr(scaler, "_scale", None), getattr(scaler, "_growth_tracker", None)


def _scaler_as_now(scaler: Any) -> Callable[[], None]:
    """A scaler's numbers are made in the first step, and belong to it."""
    scale, tracker = (None if x is None else x.clone() for x in _scale_of(scaler))

    def put_back() -> None:
        if scaler.is_enabled():
            scaler._scale, scaler._growth_tracker = scale, tracker

    return put_back


def _attributes_as_now(thing: Any) -> Callable[[], None]:
    values = {
        name: list(value) if isinstance(value, list) else value
        for name, value in vars(thing).items()
        if isinstance(value, (int, float, list, type(None)))
    }
    return lambda: vars(thing).update(values)
