"""Too large a batch of 350x300 images.

The first convolution of a small CNN makes 32 maps of 348x298 out of every image, 13 MB each, and
training keeps them until the way back. A batch of 32 needs more than a gigabyte for that, and the
fit ends with a ResourceExhaustedError in its first step.
"""

import keras
import numpy as np
from keras import layers

IMAGE = (350, 300, 3)
CLASSES = 10
BATCH_SIZE = 32

keras.utils.set_random_seed(1)
rng = np.random.default_rng(1)
labels = rng.integers(0, CLASSES, 64)
# Each class has a brightness of its own, so that there is something to learn.
images = rng.random((64, *IMAGE), dtype="float32") + labels[:, None, None, None] / CLASSES

model = keras.Sequential(
    [
        keras.Input(IMAGE),
        layers.Conv2D(32, 3, activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(64, 3, activation="relu"),
        layers.MaxPooling2D(4),
        layers.Flatten(),
        layers.Dense(CLASSES, activation="softmax"),
    ]
)
model.compile(keras.optimizers.Adam(1e-4), "sparse_categorical_crossentropy", metrics=["accuracy"])

history = model.fit(images, labels, batch_size=BATCH_SIZE, epochs=2)
print(f"final loss: {history.history['loss'][-1]:.4f}")
