"""The truth of one case: the allocator's own peak of a training in a fresh process.

A child process of accuracy.py. The training is Keras's own `fit`, fed with one batch that lies in
memory, so that what the input pipeline would hold on top is not counted.
"""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("optimizer")
parser.add_argument("precision")
parser.add_argument("batch", type=int)
parser.add_argument("--threads", type=int, default=0, help="inter-op threads; 0 for the default")
parser.add_argument("--limit", type=int, default=0, help="a cap in bytes")
options = parser.parse_args()
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="3")
if options.limit:
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(-(-options.limit // 2**20))

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from zoo import compiled  # noqa: E402

from legroom.backends.tensorflow.specs import batch_specs  # noqa: E402

if options.threads:
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)


def fill(spec: tf.TensorSpec, most: int) -> tf.Tensor:
    lengths = [options.batch, *spec.shape[1:]]
    if spec.dtype.is_floating:
        return tf.random.uniform(lengths, dtype=spec.dtype)
    return tf.random.uniform(lengths, 0, most, spec.dtype)


class Peaks(keras.callbacks.Callback):
    """The peak of the first step, and of those after the second."""

    def __init__(self) -> None:
        super().__init__()
        self.first = self.steady = 0

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        """Read, and start anew where the steady steps begin."""
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        if batch == 0:
            self.first = peak
        if batch < 2:
            tf.config.experimental.reset_memory_stats("CPU:0")
        else:
            self.steady = peak


model = compiled(options.model, options.optimizer, options.precision)
specs = next(batch_specs(model, "fit", None, None))
most = 100
embedded = [x.input_dim for x in model._flatten_layers() if hasattr(x, "input_dim")]
most = min([1000, *(x for x in embedded if isinstance(x, int))]) if embedded else 2
outputs = getattr(model, "outputs", None)
batch = keras.tree.map_structure(lambda spec: fill(spec, most if embedded else 2), specs)
if isinstance(batch[1], tf.Tensor) and batch[1].dtype.is_integer and outputs:
    batch = (batch[0], tf.random.uniform(batch[1].shape, 0, outputs[0].shape[-1], tf.int32))


def opened(*parts: Any) -> Any:
    """The same batch with its size left open, as most sources of data leave it."""
    return keras.tree.map_structure(
        lambda part: tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]]), parts
    )


if isinstance(batch[0], list):
    batch = (tuple(batch[0]), *batch[1:])  # a data set would take a list for one array
data = tf.data.Dataset.from_tensors(batch).map(opened).repeat()
tf.config.experimental.reset_memory_stats("CPU:0")
peaks = Peaks()
try:
    model.fit(data, steps_per_epoch=8, epochs=1, verbose=0, callbacks=[peaks])
    fits = True
except tf.errors.ResourceExhaustedError:
    fits = False
print(json.dumps({"fits": fits, "first": peaks.first, "steady": peaks.steady}))
