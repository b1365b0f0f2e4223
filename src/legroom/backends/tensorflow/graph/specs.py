"""The shapes and types of one batch of a model: as the user shows them, or as the model tells.

A batch is a structure of `tf.TensorSpec` with an open first axis, nested as Keras hands it to
`train_step`. Without data at hand the inputs are read off the model, and the targets off its
outputs and losses; where that leaves more than one reading, they are tried in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.core.errors import UnsupportedModelError

__all__ = ["batch_specs", "check_model"]

_SHOW_DATA = (
    "Show one batch: data=(x, y) with arrays, tf.TensorSpec or a tf.data.Dataset, as fit gets it."
)


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
    if model.distribute_strategy.num_replicas_in_sync > 1:
        raise UnsupportedModelError(
            f"The model {model.name!r} trains on several replicas at once, which can't be "
            "estimated yet. Ask about a model built outside of the strategy's scope."
        )


def batch_specs(model: Any, method: str, data: Any, length: int | None) -> Iterator[Any]:
    """The readings of one batch, the likeliest first.

    Args:
        model: The model.
        method: "fit", "evaluate" or "predict".
        data: What the user showed of the data; None to read it off the model.
        length: What open axes other than the first stand for.

    Raises:
        UnsupportedModelError: If the shapes can't be known.
    """
    if data is not None:
        yield _closed(_shown(data, method), length, model)
        return
    x = _closed(_inputs(model), length, model)
    if method == "predict":
        yield (x,)
        return
    targets = list(_targets(model, x))
    yield from ((x, y) for y in targets)
    yield (x,) if isinstance(x, (list, tuple)) else x


def _shown(data: Any, method: str) -> Any:
    """A batch's specs from what the user gave: a data set, arrays, tensors, specs."""
    if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        data = data.element_spec
    elif isinstance(data, keras.utils.PyDataset):
        data = data[0]
    elif hasattr(data, "__next__") and not isinstance(data, tuple):
        raise UnsupportedModelError(
            "An iterator can't be looked into without taking a batch from it. " + _SHOW_DATA
        )
    specs = tree.map_structure(_spec, data)
    if isinstance(specs, list):
        specs = tuple(specs)
    if method == "predict" and not isinstance(specs, tuple):
        specs = (specs,)
    return specs


def _spec(leaf: Any) -> Any:
    if leaf is None:
        return None
    if isinstance(leaf, (tf.RaggedTensor, tf.RaggedTensorSpec)):
        raise UnsupportedModelError(
            "Ragged inputs have no fixed shape. Pad them to their longest "
            "(tensor.to_tensor(), or dataset.padded_batch), and ask with that length."
        )
    if isinstance(leaf, (tf.SparseTensor, tf.SparseTensorSpec)):
        raise UnsupportedModelError(
            "How many entries a sparse input has depends on the data. Ask with a dense batch, "
            "which is the most it can be."
        )
    if not isinstance(leaf, (tf.TensorSpec, tf.Tensor, keras.KerasTensor)):
        leaf = np.asarray(leaf)
    shape = tuple(leaf.shape) if leaf.shape is not None else None
    if shape is None or len(shape) == 0:
        raise UnsupportedModelError(
            f"Every part of a batch needs a first axis for its samples. Received: shape={shape}. "
            + _SHOW_DATA
        )
    dtype = tf.as_dtype(keras.backend.standardize_dtype(leaf.dtype)) if _numeric(leaf) else (
        tf.as_dtype(leaf.dtype))  # fmt: skip
    if dtype == tf.float64 and isinstance(leaf, np.ndarray):
        dtype = tf.as_dtype(keras.config.floatx())  # as Keras's own adapters make of it
    return tf.TensorSpec((None, *shape[1:]), dtype)


def _numeric(leaf: Any) -> bool:
    return isinstance(leaf, keras.KerasTensor)


def _closed(specs: Any, length: int | None, model: Any) -> Any:
    """Specs whose axes are all known but the first."""

    def close(spec: Any) -> Any:
        if spec is None:
            return None
        rest = spec.shape.as_list()[1:]
        if None in rest:
            if length is None:
                raise UnsupportedModelError(
                    f"An input of {model.name!r} has axes of any length: {spec.shape}. Say the "
                    "longest there is with length=…, or " + _SHOW_DATA[0].lower() + _SHOW_DATA[1:]
                )
            rest = [length if size is None else size for size in rest]
        return tf.TensorSpec((None, *rest), spec.dtype)

    return tree.map_structure(close, specs)


def _inputs(model: Any) -> Any:
    """What the model takes, read off the model."""
    if getattr(model, "_functional", None) is not None:
        model = model._functional  # a Sequential that knows its input
    if getattr(model, "inputs", None):
        structure = getattr(model, "_inputs_struct", None)
        if structure is None:
            structure = model.inputs if len(model.inputs) > 1 else model.inputs[0]
        return tree.map_structure(_spec, structure)
    shapes = getattr(model, "_build_shapes_dict", None)
    if shapes:
        found = list(shapes.values())
        read = [_from_shape(shape) for shape in found]
        return read[0] if len(read) == 1 else tuple(read)
    raise UnsupportedModelError(
        f"The model {model.name!r} was never built, so its shapes are not known. Give it an "
        "Input, or call it once on data. Or: " + _SHOW_DATA
    )


def _from_shape(shape: Any) -> Any:
    """The spec of an input that only its shape is known of, possibly nested."""
    if isinstance(shape, dict):
        return {name: _from_shape(inner) for name, inner in shape.items()}
    if isinstance(shape, (list, tuple)) and shape and isinstance(shape[0], (list, tuple)):
        return type(shape)(_from_shape(inner) for inner in shape)
    return tf.TensorSpec((None, *tuple(shape)[1:]), tf.as_dtype(keras.config.floatx()))


def _targets(model: Any, x: Any) -> Iterator[Any]:
    """The readings of the targets: what each loss compares the model's outputs with."""
    outputs = _outputs(model, x)
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


def _outputs(model: Any, x: Any) -> Any:
    functional = getattr(model, "_functional", None) or model
    structure = getattr(functional, "_outputs_struct", None)
    if structure is None:
        function = tf.function(lambda given: model(given, training=True), autograph=False)
        try:
            with untouched(model), without_memory():
                structure = function.get_concrete_function(x).structured_outputs
        except Exception:  # a model that is never called as a whole, as a GAN's
            return None
    lengths = [spec.shape.as_list() for spec in tree.flatten(x) if spec is not None]
    return tree.map_structure(lambda out: _output_spec(out, lengths), structure)


def _output_spec(output: Any, inputs: list[list[int | None]]) -> tf.TensorSpec:
    """An output's spec; an open axis has the length that the inputs have in its place."""
    shape: list[int | None] = [None]
    for axis, size in enumerate(tuple(output.shape)[1:], start=1):
        if size is None:
            size = next((given[axis] for given in inputs if len(given) > axis), None)
        shape.append(size)
    return tf.TensorSpec(shape, tf.as_dtype(keras.backend.standardize_dtype(output.dtype)))


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


def _target(output: tf.TensorSpec, sparse: bool) -> tf.TensorSpec:
    if sparse and output.shape.rank > 1:
        return tf.TensorSpec(output.shape[:-1], tf.int32)
    dtype = tf.float32 if output.dtype.is_floating else output.dtype
    return tf.TensorSpec(output.shape, dtype)
