"""A Keras model's steps, compiled for shapes alone: no weight and no batch has to be there."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import keras
import numpy as np
from keras import tree

from legroom.backends import patches
from legroom.backends.jax.device.pool import default_pool
from legroom.backends.jax.forecast.host_kernels import scratch_bytes
from legroom.backends.jax.forecast.imagined import shape_of, without_memory
from legroom.backends.jax.slices.slice_run import SliceStep
from legroom.backends.jax.slices.sliced import Sliced
from legroom.backends.jax.step.state import State, variables_of, without_untouched
from legroom.backends.keras.models import specs
from legroom.backends.keras.models.reading import variable_bytes
from legroom.backends.keras.models.untouched import untouched
from legroom.backends.keras.slices import loss_scale
from legroom.backends.keras.slices.rules import Rules
from legroom.core.errors import LegroomError, UnsupportedModelError

__all__ = ["KINDS", "StepProgram", "batch_of", "compile_step", "state_of"]

_ALSO = "specs or a PyDataset"
_SHOW_DATA = specs.show_data(_ALSO)
# By what is asked about, as Keras's trainer calls it.
KINDS = {"fit": "train", "evaluate": "test", "predict": "predict"}
# A model that is called to see its outputs is called on so many samples.
_FEW = 8
# Half the time to compile for a CPU, and the same memory: XLA plans it before LLVM begins.
_QUICKLY: dict[str, Any] = {"xla_backend_optimization_level": 0}


@dataclasses.dataclass(frozen=True)
class StepProgram:
    """What a step takes on one size of batches, in bytes.

    Attributes:
        held: What is there all the time, by what it is for: weights, optimizer, other.
        input: One batch.
        sums: What slices add their gradients up in.
        taken: What the program takes beside what it is called with, by its compiler.
        scratch: What its kernels take beside that: about, and at most.
        layers: The weights' bytes of each layer, by its name.
        trained: The shapes of the weights that are trained.
        compiled: The program.
    """

    held: dict[str, int]
    input: int
    sums: int
    taken: int
    scratch: tuple[int, int]
    layers: dict[str, int]
    trained: frozenset[tuple[int, ...]]
    compiled: Any = dataclasses.field(repr=False, default=None)

    @property
    def sure(self) -> int:
        """What is known of the whole."""
        return sum(self.held.values()) + self.input + self.sums + self.taken


def compile_step(
    model: Any,
    samples: int,
    *,
    method: str,
    data: Any,
    length: int | None,
    sliced: bool = False,
) -> StepProgram:
    """Compile a model's step for a size of batches; nothing about the model changes.

    Args:
        model: The model.
        samples: The batch size; the slice's, where it is sliced.
        method: "fit", "evaluate" or "predict".
        data: What the user showed of the data; None to read it off the model.
        length: What open axes other than the first stand for.
        sliced: Whether the step is that of one slice, which adds to the sums of gradients.

    Raises:
        UnsupportedModelError: If the model can't be asked about.
        LegroomError: If its step can't be compiled without running it.
    """
    specs.check_model(model, method)
    failed: Exception | None = None
    for batch in specs.batch_specs(model, method, data, length, read=_read, call=_call, also=_ALSO):
        try:
            return _compile(model, KINDS[method], batch, samples, sliced=sliced)
        except (UnsupportedModelError, MemoryError):
            raise
        except Exception as error:
            # The likeliest reading tells what is wrong.
            failed = failed or error
    words = " ".join(str(failed).split())[:300]
    raise LegroomError(
        f"The step of {model.name!r} can't be compiled for shapes alone: {words}. " + _SHOW_DATA
    ) from failed


def _compile(model: Any, kind: str, specs_: Any, samples: int, *, sliced: bool) -> StepProgram:
    device = default_pool().device
    batch = batch_of(specs_, samples)
    with untouched(model), without_memory():
        state = state_of(model, kind, batch)
        step = SliceStep(model, kind)
        if sliced:
            lowered, sums = _lower_slice(step, state, batch)
        else:
            lowered, sums = _lower_whole(step, kind, state, batch), []
        held, layers = _held(model, kind, state)
        program = lowered.compile(_QUICKLY if device.platform == "cpu" else {})
    figures = program.memory_analysis()
    if figures is None:
        raise LegroomError("XLA does not tell what its program takes on this device.")
    taken = figures.temp_size_in_bytes + (
        figures.output_size_in_bytes - figures.alias_size_in_bytes
    )
    return StepProgram(
        held=held,
        input=_nbytes(tree.flatten(batch)),
        sums=_nbytes(sums),
        taken=int(taken),
        scratch=scratch_bytes(program) if device.platform == "cpu" else (0, 0),
        layers=layers,
        trained=frozenset(tuple(x.shape) for x in state.trainable_variables),
        compiled=program,
    )


def state_of(model: Any, kind: str, batch: Any) -> State:
    """The shapes of a model's state, which is built as `fit` builds it before its first step."""
    if kind != "predict" or not all(layer.built for layer in model._flatten_layers()):
        model._symbolic_build(data_batch=batch)
    return State(*([shape_of(v) for v in part] for part in variables_of(kind, model)))


def batch_of(batch: Any, samples: int) -> Any:
    """The shapes of a batch, as a program is compiled for them."""

    def make(spec: specs.Spec | None) -> Any:
        if spec is None:
            return None
        shape = [samples if size is None else size for size in spec.shape]
        return jax.ShapeDtypeStruct(shape, jax.dtypes.canonicalize_dtype(np.dtype(spec.dtype)))

    return tree.map_structure(make, batch)


def _lower_whole(step: SliceStep, kind: str, state: State, batch: Any) -> Any:
    """As `legroom.backends.jax.step.step` runs it, and Keras too."""

    def whole(state: State, data: Any) -> Any:
        outputs, after = step.whole(state, data)
        return outputs, after if kind == "train" else without_untouched(state, after)

    return jax.jit(whole, donate_argnums=(0,) if kind == "train" else ()).lower(state, batch)


def _lower_slice(step: SliceStep, state: State, batch: Any) -> tuple[Any, Sequence[Any]]:
    """One slice; how its losses and draws make up the batch's is not known, and takes little."""
    sliced = Sliced(step, Rules(), default_pool(), (), compiled=True)
    sums = jax.eval_shape(sliced._zeros, state.trainable_variables)
    share, start = jax.ShapeDtypeStruct((), np.float32), jax.ShapeDtypeStruct((), np.uint32)
    part = jax.jit(sliced._run_part, donate_argnums=(0,))
    patched = patches.has(loss_scale.__name__)
    try:
        return part.lower(sums, state, batch, share, {}, start), sums
    finally:
        if not patched:
            patches.take_off(loss_scale.__name__)  # which a guarded step leaves in place


def _held(model: Any, kind: str, state: State) -> tuple[dict[str, int], dict[str, int]]:
    """What is there all the time, by what it is for; and the weights by layer."""
    weights = {id(v) for v in model.weights}
    held = {"weights": 0, "optimizer": _nbytes(state.optimizer_variables), "other": 0}
    for variable in (*model.trainable_variables, *model.non_trainable_variables):
        held["weights" if id(variable) in weights else "other"] += variable_bytes(variable)
    held["other"] += _nbytes(state.metrics_variables)
    layers: dict[str, int] = {}
    for layer in model._flatten_layers(include_self=False):
        if not isinstance(layer, keras.Model):
            own = [*layer._trainable_variables, *layer._non_trainable_variables]
            size = sum(variable_bytes(v) for v in own if id(v) in weights)
            layers[layer.name] = layers.get(layer.name, 0) + size
    return held, layers


def _nbytes(shapes: Sequence[Any]) -> int:
    return sum(x.size * x.dtype.itemsize for x in shapes if x is not None)


def _read(data: Any) -> Any:
    if isinstance(data, keras.utils.PyDataset):
        data = data[0]
    elif type(data).__module__.startswith("tensorflow.") and hasattr(data, "element_spec"):
        data = data.element_spec
    elif type(data).__module__.startswith("torch.utils.data"):
        data = next(iter(data))
    elif hasattr(data, "__next__") and not isinstance(data, tuple):
        raise UnsupportedModelError(
            "An iterator can't be looked into without taking a batch from it. " + _SHOW_DATA
        )
    return tree.map_structure(lambda leaf: specs.read_leaf(leaf, _SHOW_DATA), data)


def _call(model: Any, x: Any) -> Any:
    """A model's outputs, by their shapes."""
    given = tree.map_structure(lambda one: keras.KerasTensor((_FEW, *one.shape[1:]), one.dtype), x)
    with untouched(model), without_memory():
        return model(given, training=True)
