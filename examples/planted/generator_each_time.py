"""A data set over a generator that is made anew in each round."""

import numpy as np
import tensorflow as tf

rng = np.random.default_rng(0)


def samples():
    for _ in range(64):
        yield rng.random(100)


total = 0.0
for _ in range(14):
    data = tf.data.Dataset.from_generator(
        samples, output_signature=tf.TensorSpec((100,), tf.float64)
    )
    for batch in data.batch(16):
        total += float(tf.reduce_sum(batch))

print(f"sum: {total:.1f}")
