"""The truth of one case: the allocator's own peak of a training in a fresh process.

A child process of accuracy.py. The training is Keras's own `fit`, fed with one batch that lies in
memory, so that what the input pipeline would hold on top is not counted.
"""

from __future__ import annotations

import argparse
import json
import os

parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("optimizer")
parser.add_argument("precision")
parser.add_argument("batch", type=int)
parser.add_argument("--threads", type=int, default=0, help="inter-op threads; 0 for the default")
parser.add_argument("--compiled", action="store_true", help="by XLA")
parser.add_argument("--limit", type=int, default=0, help="a cap in bytes")
options = parser.parse_args()
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0", TF_CPP_MIN_LOG_LEVEL="3")
if options.limit:
    os.environ["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(-(-options.limit // 2**20))

import keras  # noqa: E402
import tensorflow as tf  # noqa: E402
from zoo import compiled, one_batch  # noqa: E402

if options.threads:
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)


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
if options.compiled:
    model.jit_compile = True
data = one_batch(model, options.batch)
tf.config.experimental.reset_memory_stats("CPU:0")
peaks = Peaks()
try:
    model.fit(data, steps_per_epoch=8, epochs=1, verbose=0, callbacks=[peaks])
    fits = True
except tf.errors.ResourceExhaustedError:
    fits = False
print(json.dumps({"fits": fits, "first": peaks.first, "steady": peaks.steady}))
