"""The shapes and types of one batch of a model, as `tf.TensorSpec` with an open first axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import tree

from legroom.backends.keras.models import specs
from legroom.backends.keras.models.specs import Spec
from legroom.backends.tensorflow.graph.untouched import untouched, without_memory
from legroom.core.errors import UnsupportedModelError

__all__ = ["batch_specs", "check_model"]

_ALSO = "tf.TensorSpec or a tf.data.Dataset"
_SHOW_DATA = specs.show_data(_ALSO)


def check_model(model: Any, method: str) -> None:
    """See that a model is one that can be asked about.

    Raises:
        UnsupportedModelError: If it is no Keras model, was not compiled for what is asked, or
            trains on several devices.
    """
    specs.check_model(model, method)
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
    found = specs.batch_specs(model, method, data, length, read=_read, call=_call, also=_ALSO)
    for batch in found:
        yield tree.map_structure(_tensor_spec, batch)


def _tensor_spec(spec: Spec | None) -> Any:
    return None if spec is None else tf.TensorSpec(spec.shape, tf.as_dtype(spec.dtype))


def _read(data: Any) -> Any:
    """A batch's specs from what the user gave: a data set, arrays, tensors, specs."""
    if isinstance(data, (tf.data.Dataset, tf.distribute.DistributedDataset)):
        data = data.element_spec
    elif isinstance(data, keras.utils.PyDataset):
        data = data[0]
    elif hasattr(data, "__next__") and not isinstance(data, tuple):
        raise UnsupportedModelError(
            "An iterator can't be looked into without taking a batch from it. " + _SHOW_DATA
        )
    return tree.map_structure(_read_leaf, data)


def _read_leaf(leaf: Any) -> Spec | None:
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
    if isinstance(leaf, (tf.TensorSpec, tf.Tensor)):
        known = leaf.shape.rank is not None
        shape = tuple(leaf.shape.as_list()) if known else None
        return specs.read_leaf(_Shaped(shape, leaf.dtype.name), _SHOW_DATA)
    if leaf is None or isinstance(leaf, keras.KerasTensor):
        return specs.read_leaf(leaf, _SHOW_DATA)
    array = np.asarray(leaf)
    if array.dtype.kind in "OSU":  # texts, for which Keras has another name
        return specs.read_leaf(_Shaped(array.shape, "string"), _SHOW_DATA)
    return specs.read_leaf(array, _SHOW_DATA)


class _Shaped:
    """A shape and the name of a type."""

    def __init__(self, shape: Any, dtype: str) -> None:
        self.shape, self.dtype = shape, dtype


def _call(model: Any, x: Any) -> Any:
    """A model's outputs, traced."""
    function = tf.function(lambda given: model(given, training=True), autograph=False)
    with untouched(model), without_memory():
        given = tree.map_structure(_tensor_spec, x)
        return function.get_concrete_function(given).structured_outputs
