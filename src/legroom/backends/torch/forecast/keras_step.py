"""A Keras model's steps, run on trial: on fake tensors, or on real ones with all put back."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import torch
from keras import tree
from keras.src.backend.torch.core import get_device, to_torch_dtype
from keras.src.random.seed_generator import global_seed_generator

from legroom.backends import patches
from legroom.backends.keras.models import specs
from legroom.backends.keras.models.untouched import untouched as untouched_by_keras
from legroom.backends.parts import LAYER
from legroom.backends.torch.forecast.fakes import imagining, same_seeds, swapped
from legroom.backends.torch.forecast.recorder import Recorder
from legroom.backends.torch.forecast.script import RECORDED_SIZE, Script
from legroom.backends.torch.step.watching import SliceEnd, Watch, watched_briefly, watching
from legroom.core.errors import LegroomError, UnsupportedModelError

__all__ = ["batch_of", "batch_specs", "on_fakes", "record_model", "run_method", "untouched",
           "variables_of"]  # fmt: skip

_ALSO = "tensors or a PyDataset"
_SHOW_DATA = specs.show_data(_ALSO)
# The second slice adds to the gradients of the first, and updates.
_SLICES = 2


@contextlib.contextmanager
def untouched(*roots: Any) -> Iterator[None]:
    """Put back everything but values that happens to models, and around them, inside."""
    with same_seeds(), untouched_by_keras(*roots, kinds=(torch.nn.Module,)):
        yield


def batch_specs(model: Any, method: str, data: Any, length: int | None) -> Iterator[Any]:
    """The readings of one batch, as `legroom.backends.keras.models.specs.batch_specs` has them."""
    return specs.batch_specs(model, method, data, length, read=_read, call=_call, also=_ALSO)


def _read(data: Any) -> Any:
    if isinstance(data, keras.utils.PyDataset):
        data = data[0]
    elif isinstance(data, torch.utils.data.DataLoader):
        data = next(iter(data))
    elif type(data).__module__.startswith("tensorflow.") and hasattr(data, "element_spec"):
        data = data.element_spec
    elif hasattr(data, "__next__") and not isinstance(data, tuple):
        raise UnsupportedModelError(
            "An iterator can't be looked into without taking a batch from it. " + _SHOW_DATA
        )
    return tree.map_structure(lambda leaf: specs.read_leaf(leaf, _SHOW_DATA), data)


def _call(model: Any, x: Any) -> Any:
    """A model's outputs, computed without memory."""
    with on_fakes(model), torch.no_grad():
        outputs = model(batch_of(x, RECORDED_SIZE), training=True)
        return tree.map_structure(lambda y: keras.KerasTensor(tuple(y.shape), y.dtype), outputs)


def batch_of(batch: Any, samples: int) -> Any:
    """A batch of some shapes and types, on the device that Keras uses; its values are zeros."""

    def make(spec: specs.Spec | None) -> Any:
        if spec is None:
            return None
        shape = [samples if size is None else size for size in spec.shape]
        return torch.zeros(shape, dtype=to_torch_dtype(spec.dtype), device=get_device())

    return tree.map_structure(make, batch)


def variables_of(model: Any) -> list[Any]:
    """All that Keras keeps for a model, its optimizer's and the seeds included."""
    found = [*model.variables, *model.metrics_variables, global_seed_generator().state]
    for layer in model._flatten_layers():
        found += [*layer.variables, *layer._non_trainable_variables]
        found += [one.state for one in getattr(layer, "_seed_generators", ())]
    if (optimizer := getattr(model, "optimizer", None)) is not None:
        found += optimizer.variables
        if (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
            found += inner.variables
    return list({id(v): v for v in found}.values())


@contextlib.contextmanager
def on_fakes(model: Any) -> Iterator[None]:
    """Have a model run without memory, and nothing about it change."""
    with untouched(model), imagining(), swapped(variables_of(model), model.modules()):
        yield


def run_method(model: Any, method: str, batch: Any) -> Any:
    """Run one step of a model, as `fit`, `evaluate` or `predict` do."""
    if method == "fit":
        with torch.enable_grad():
            return model.train_step(batch)
    with torch.no_grad():
        return model.test_step(batch) if method == "evaluate" else model.predict_step(batch)


def record_model(
    model: Any,
    *,
    method: str,
    data: Any,
    length: int | None,
    sliced: bool = False,
    card: bool = False,
) -> Script:
    """Run a model's step on tensors without memory, and record what it takes.

    Args:
        model: The model; nothing about it changes.
        method: "fit", "evaluate" or "predict".
        data: What the user showed of the data; None to read it off the model.
        length: What open axes other than the first stand for.
        sliced: Whether the step is that of slices, which add up their gradients.
        card: As for `Recorder`.

    Raises:
        UnsupportedModelError: If the model can't be asked about.
        LegroomError: If the step can't be run on tensors without values.
    """
    specs.check_model(model, method)
    failed: Exception | None = None
    for batch in batch_specs(model, method, data, length):
        try:
            with on_fakes(model):
                return _record(Recorder(card=card), model, method, batch, sliced)
        except (UnsupportedModelError, MemoryError):
            raise
        except Exception as error:
            # The likeliest reading tells what is wrong.
            failed = failed or error
    words = " ".join(str(failed).split())[:300]
    raise LegroomError(
        f"The step of {model.name!r} can't be run on tensors without values: {words}. " + _SHOW_DATA
    ) from failed


def _record(recorder: Recorder, model: Any, method: str, batch: Any, sliced: bool) -> Script:
    optimizer = getattr(model, "optimizer", None) if method == "fit" else None
    layers = [x for x in model._flatten_layers(include_self=False) if not _is_model(x)]
    names = {id(v._value): layer.name for layer in layers for v in layer.variables}
    with recorder, contextlib.ExitStack() as hooks:
        for variable in variables_of(model):
            recorder.see(variable._value)
        _name_held(recorder, model, optimizer, names)
        if optimizer is not None and not optimizer.built:
            optimizer.build(model.trainable_variables)  # as `fit` does before its first step
            _name_held(recorder, model, optimizer, names)
        model.train(method == "fit")
        for layer in layers:
            call = functools.partial(_in_layer, recorder, layer.name, layer.call)
            hooks.enter_context(patches.shadowed(layer, LAYER, "call", call))
        leftover = _leave_gradients(recorder, model, names) if optimizer is not None else []
        recorder.purpose = "input"
        kept = batch_of(batch, RECORDED_SIZE)
        recorder.begin_step()
        given = batch_of(batch, RECORDED_SIZE)
        kept = given  # that of the step before is held until now
        recorder.purpose = "activations"
        run = functools.partial(run_method, model, method)
        _run_slices(recorder, model, names, run, given, _SLICES if sliced else 1)
        del given, kept
        _name_held(recorder, model, optimizer, names)
    return recorder.script(leftover)


def _leave_gradients(recorder: Recorder, model: Any, names: dict[int, str]) -> list[int]:
    """Have the gradients that a step leaves behind be there; returns their places."""
    weights = [v._value for v in model.trainable_variables]
    for weight in weights:
        weight.grad = torch.zeros_like(weight)
    gradients = [weight.grad for weight in weights]
    recorder.mark(gradients, "gradients", [names.get(id(weight), "") for weight in weights])
    return recorder.places(gradients)


def _run_slices(
    recorder: Recorder,
    model: Any,
    names: dict[int, str],
    run: Callable[[Any], Any],
    given: Any,
    count: int,
) -> None:
    def update(optimizer: Any) -> None:
        del optimizer
        weights = [v._value for v in model.trainable_variables if v._value.grad is not None]
        owners = [names.get(id(weight), "") for weight in weights]
        recorder.mark([weight.grad for weight in weights], "gradients", owners)
        recorder.purpose = "workspace"

    with watched_briefly():
        for number in range(count):
            first, last = number == 0, number == count - 1
            watch = Watch(first=first, last=last, on_update=update)
            with watching(watch), contextlib.suppress(SliceEnd):
                run(given)
            recorder.purpose = "activations"


def _name_held(recorder: Recorder, model: Any, optimizer: Any, names: dict[int, str]) -> None:
    """Say what is for the weights, the optimizer, and what else stays from step to step."""
    recorder.mark([v._value for v in variables_of(model)], "other")
    weights = [v._value for v in model.weights]
    recorder.mark(weights, "weights", [names.get(id(x), "") for x in weights])
    if optimizer is not None:
        recorder.mark([v._value for v in _slots(optimizer)], "optimizer")


def _slots(optimizer: Any) -> Sequence[Any]:
    inner = getattr(optimizer, "inner_optimizer", None)
    return [*optimizer.variables, *(inner.variables if inner is not None else ())]


def _is_model(layer: Any) -> bool:
    return isinstance(layer, keras.Model)


def _in_layer(recorder: Recorder, name: str, call: Any, *args: Any, **kwargs: Any) -> Any:
    with recorder.layer(name):
        return call(*args, **kwargs)
