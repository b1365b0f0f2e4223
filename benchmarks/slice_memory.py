"""The memory of steps on slices of 32 out of 64, or of plain steps on batches of 32.

A child process of run.py. The same batch again and again, which lies on the device: nothing but
the step moves. One op at a time where asked for: with two, which ops run side by side is chance,
and moves the peak of one and the same step by a tenth or two.
"""

from __future__ import annotations

import argparse
import json

import legroom

parser = argparse.ArgumentParser()
parser.add_argument("--sliced", action="store_true")
parser.add_argument("--threads", type=int, default=0, help="ops side by side; 0: as TensorFlow")
options = parser.parse_args()
legroom.limit("8GiB")

import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from net import convolutional_net  # noqa: E402

tf.config.threading.set_inter_op_parallelism_threads(options.threads)
keras.utils.set_random_seed(0)
model = convolutional_net(96)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
samples = 64 if options.sliced else 32
x = tf.random.uniform((samples, 96, 96, 3))
y = tf.zeros((samples,), tf.int64)
batch_bytes = x.shape.num_elements() * 4 + samples * 8
if options.sliced:
    legroom.guard(model, slice_size=32)
peaks = []
for _ in range(12):
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.train_on_batch(x, y)
    peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - batch_bytes)
steady = sorted(peaks[2:])
print(
    json.dumps(
        {
            "peak": steady[len(steady) // 2],
            "lowest": steady[0],
            "highest": steady[-1],
            "gradients": int(sum(np.prod(w.shape) * 4 for w in model.trainable_weights)),
        }
    )
)
