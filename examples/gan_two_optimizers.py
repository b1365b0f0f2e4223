"""A GAN: two models and two optimizers in one step.

A tf.function written by hand trains a discriminator on real and made images, and then a generator
against the discriminator as it now is. The noise is drawn for as many images as the batch has.
Both models keep their activations in the same step, and the batch is too large for that.
"""

import numpy as np
import tensorflow as tf
from tensorflow import keras

SIDE = 64
NOISE = 32
BATCH_SIZE = 1280

keras.utils.set_random_seed(8)
rng = np.random.default_rng(8)
angles = rng.random((BATCH_SIZE, 1, 1, 1)) * np.pi
waves = np.sin(np.arange(SIDE)[:, None, None] / 4 + angles).astype("float32")
real = np.broadcast_to(waves, (BATCH_SIZE, SIDE, SIDE, 1))

generator = keras.Sequential(
    [
        keras.Input((NOISE,)),
        keras.layers.Dense(16 * 16 * 16, activation="relu"),
        keras.layers.Reshape((16, 16, 16)),
        keras.layers.UpSampling2D(2),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.UpSampling2D(2),
        keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        keras.layers.Conv2D(1, 3, padding="same", activation="tanh"),
    ]
)
discriminator = keras.Sequential(
    [
        keras.Input((SIDE, SIDE, 1)),
        keras.layers.Conv2D(16, 3, padding="same", activation="leaky_relu"),
        keras.layers.Conv2D(16, 3, strides=2, padding="same", activation="leaky_relu"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1),
    ]
)
generator_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
discriminator_optimizer = keras.optimizers.Adam(1e-3, beta_1=0.5)
entropy = keras.losses.BinaryCrossentropy(from_logits=True)


@tf.function
def train_step(images):
    noise = tf.random.normal((tf.shape(images)[0], NOISE))
    with tf.GradientTape() as tape:
        on_real = discriminator(images, training=True)
        on_made = discriminator(generator(noise, training=True), training=True)
        d_loss = entropy(tf.ones_like(on_real), on_real) + entropy(tf.zeros_like(on_made), on_made)
    gradients = tape.gradient(d_loss, discriminator.trainable_variables)
    discriminator_optimizer.apply_gradients(zip(gradients, discriminator.trainable_variables))

    with tf.GradientTape() as tape:
        on_made = discriminator(generator(noise, training=True), training=True)
        g_loss = entropy(tf.ones_like(on_made), on_made)
    gradients = tape.gradient(g_loss, generator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients, generator.trainable_variables))
    return d_loss, g_loss


for epoch in range(2):
    for images in tf.data.Dataset.from_tensor_slices(real).batch(BATCH_SIZE):
        d_loss, g_loss = train_step(images)
    print(f"epoch {epoch + 1}: discriminator {d_loss:.4f}, generator {g_loss:.4f}")

print(f"final loss: {float(d_loss + g_loss):.4f}")
