"""The shapes and types of one batch of a model: as the user shows them, or as the model tells.

A batch is a structure of `Spec` with an open first axis, nested as Keras hands it to `train_step`.
Without data at hand the inputs are read off the model, and the targets off its outputs and losses;
where that leaves more than one reading, they are tried in turn.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
from keras import tree

from legroom.core.errors import UnsupportedModelError

__all__ = ["Spec", "batch_specs", "check_model", "read_leaf", "show_data"]


@dataclasses.dataclass(frozen=True)
class Spec:
    """One part of a batch.

    Attributes:
        shape: Its shape, with None for what is open.
        dtype: Its type, by name.
    """

    shape: tuple[int | None, ...]
    dtype: str


def show_data(also: str) -> str:
    """What to do where the shapes of a batch are not known.

    Args:
        also: What may be shown beside arrays, with the framework's names.
    """
    return f"Show one batch: data=(x, y) with arrays, {also}, as fit gets it."


def check_model(model: Any, method: str) -> None:
    """See that a model is one that can be asked about.

    Raises:
        UnsupportedModelError: If it is no Keras model, or was not compiled for what is asked.
    """
    if not isinstance(model, keras.Model):
        raise UnsupportedModelError(
            f"Expected a compiled keras.Model. Received: {type(model).__module__}."
            f"{type(model).__qualname__}"
        )
    own_step = type(model).train_step is not keras.Model.train_step
    if method == "fit" and getattr(model, "optimizer", None) is None and not own_step:
        raise UnsupportedModelError(
            f"The model {model.name!r} has no optimizer, so there is no training step to ask "
            "about. Call model.compile(optimizer=…, loss=…) first, or ask for method='predict'."
        )
    if method != "predict" and not getattr(model, "compiled", False):
        raise UnsupportedModelError(
            f"The model {model.name!r} is not compiled. Call model.compile(optimizer=…, loss=…) "
            "first, or ask for method='predict'."
        )


def batch_specs(
    model: Any,
    method: str,
    data: Any,
    length: int | None,
    *,
    read: Callable[[Any], Any],
    call: Callable[[Any, Any], Any],
    also: str,
) -> Iterator[Any]:
    """The readings of one batch, the likeliest first.

    Args:
        model: The model.
        method: "fit", "evaluate" or "predict".
        data: What the user showed of the data; None to read it off the model.
        length: What open axes other than the first stand for.
        read: The specs of what the user showed.
        call: A model's outputs on a batch of specs, or something of their shapes and types.
        also: As for `show_data`.

    Raises:
        UnsupportedModelError: If the shapes can't be known.
    """
    advice = show_data(also)
    if data is not None:
        yield _closed(_shown(data, method, read), length, model, advice)
        return
    x = _closed(_inputs(model, advice), length, model, advice)
    if method == "predict":
        yield (x,)
        return
    targets = list(_targets(model, x, call))
    yield from ((x, y) for y in targets)
    yield (x,) if isinstance(x, (list, tuple)) else x


def _shown(data: Any, method: str, read: Callable[[Any], Any]) -> Any:
    """A batch's specs from what the user gave."""
    specs = read(data)
    if isinstance(specs, list):
        specs = tuple(specs)
    if method == "predict" and not isinstance(specs, tuple):
        specs = (specs,)
    return specs


def read_leaf(leaf: Any, advice: str) -> Spec | None:
    """The spec of an array, or of whatever has a shape and a type.

    Args:
        leaf: It.
        advice: What `show_data` says.
    """
    if leaf is None:
        return None
    array = not (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))
    leaf = np.asarray(leaf) if array else leaf
    shape = tuple(leaf.shape) if leaf.shape is not None else None
    if shape is None or len(shape) == 0:
        raise UnsupportedModelError(
            f"Every part of a batch needs a first axis for its samples. Received: shape={shape}. "
            + advice
        )
    dtype = keras.backend.standardize_dtype(leaf.dtype)
    if dtype == "float64" and isinstance(leaf, np.ndarray):
        dtype = keras.config.floatx()  # as Keras's own adapters make of it
    return Spec((None, *shape[1:]), dtype)


def _closed(specs: Any, length: int | None, model: Any, advice: str) -> Any:
    """Specs whose axes are all known but the first."""

    def close(spec: Any) -> Any:
        if spec is None:
            return None
        rest = list(spec.shape[1:])
        if None in rest:
            if length is None:
                raise UnsupportedModelError(
                    f"An input of {model.name!r} has axes of any length: {spec.shape}. Say the "
                    f"longest there is with length=…, or {advice[0].lower()}{advice[1:]}"
                )
            rest = [length if size is None else size for size in rest]
        return Spec((None, *rest), spec.dtype)

    return tree.map_structure(close, specs)


def _inputs(model: Any, advice: str) -> Any:
    """What the model takes, read off the model."""
    if getattr(model, "_functional", None) is not None:
        model = model._functional  # a Sequential that knows its input
    if getattr(model, "inputs", None):
        structure = getattr(model, "_inputs_struct", None)
        if structure is None:
            structure = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        return tree.map_structure(lambda leaf: read_leaf(leaf, advice), structure)
    shapes = getattr(model, "_build_shapes_dict", None)
    if shapes:
        found = list(shapes.values())
        read = [_from_shape(shape) for shape in found]
        return read[0] if len(read) == 1 else tuple(read)
    raise UnsupportedModelError(
        f"The model {model.name!r} was never built, so its shapes are not known. Give it an "
        "Input, or call it once on data. Or: " + advice
    )


def _from_shape(shape: Any) -> Any:
    """The spec of an input that only its shape is known of, possibly nested."""
    if isinstance(shape, dict):
        return {name: _from_shape(inner) for name, inner in shape.items()}
    if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
        return type(shape)(_from_shape(inner) for inner in shape)
    return Spec((None, *tuple(shape)[1:]), keras.config.floatx())


def _targets(model: Any, x: Any, call: Callable[[Any, Any], Any]) -> Iterator[Any]:
    """The readings of the targets: what each loss compares the model's outputs with."""
    outputs = _outputs(model, x, call)
    if outputs is None:
        return
    flat = tree.flatten(outputs)
    losses = _losses(model, len(flat), outputs)
    likely = [_target(out, _is_sparse(loss)) for out, loss in zip(flat, losses, strict=True)]
    yield tree.pack_sequence_as(outputs, likely)
    for sparse in (True, False):
        other = [_target(out, sparse) for out in flat]
        if other != likely:
            yield tree.pack_sequence_as(outputs, other)


def _outputs(model: Any, x: Any, call: Callable[[Any, Any], Any]) -> Any:
    functional = getattr(model, "_functional", None) or model
    structure = getattr(functional, "_outputs_struct", None)
    if structure is None:
        try:
            structure = call(model, x)
        except Exception:  # a model that is never called as a whole, as a GAN's
            return None
    lengths = [spec.shape for spec in tree.flatten(x) if spec is not None]
    return tree.map_structure(lambda out: _output_spec(out, lengths), structure)


def _output_spec(output: Any, inputs: list[tuple[int | None, ...]]) -> Spec:
    """An output's spec; an open axis has the length that the inputs have in its place."""
    shape: list[int | None] = [None]
    for axis, size in enumerate(tuple(output.shape)[1:], start=1):
        if size is None:
            size = next((given[axis] for given in inputs if len(given) > axis), None)
        shape.append(size)
    return Spec(tuple(shape), keras.backend.standardize_dtype(output.dtype))


def _losses(model: Any, count: int, outputs: Any) -> list[Any]:
    loss = getattr(model, "loss", None)
    if isinstance(loss, dict):
        names = list(outputs) if isinstance(outputs, dict) else list(model.output_names)
        return [loss.get(name) for name in names][:count] + [None] * (count - len(names))
    if isinstance(loss, (list, tuple)):
        return (list(loss) + [None] * count)[:count]
    return [loss] * count


def _is_sparse(loss: Any) -> bool:
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    return "sparse" in str(name).lower()


def _target(output: Spec, sparse: bool) -> Spec:
    if sparse and len(output.shape) > 1:
        return Spec(output.shape[:-1], "int32")
    return Spec(output.shape, "float32" if "float" in output.dtype else output.dtype)
