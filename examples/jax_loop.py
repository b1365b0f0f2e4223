"""A convolutional net in plain JAX with optax, with a loop as people write it. No Keras anywhere.

A batch of 128 pictures takes more than 700 MiB. The two lines for legroom are the import and the
decorator above `jax.jit`.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

import legroom

CLASSES = 10
rng = np.random.default_rng(0)
labels = rng.integers(0, CLASSES, 384)
# Each class has a brightness of its own, so that there is something to learn.
pictures = rng.random((384, 64, 64, 3), dtype="float32") + labels[:, None, None, None] / CLASSES


def make_weights(key):
    shapes = {"one": (3, 3, 3, 32), "two": (3, 3, 32, 32), "three": (3, 3, 32, 32)}
    keys = jax.random.split(key, len(shapes))
    scale = jax.nn.initializers.he_normal()
    weights = {name: scale(k, shape) for k, (name, shape) in zip(keys, shapes.items())}
    return {**weights, "dense": jnp.zeros((16 * 16 * 32, CLASSES))}


def convolution(x, kernel):
    numbers = ("NHWC", "HWIO", "NHWC")
    return jax.nn.relu(
        jax.lax.conv_general_dilated(x, kernel, (1, 1), "SAME", dimension_numbers=numbers)
    )


def halved(x):
    return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def loss_of(weights, x, y, key):
    x = halved(convolution(convolution(x, weights["one"]), weights["two"]))
    x = halved(convolution(x, weights["three"])).reshape(len(x), -1)
    x = jnp.where(jax.random.bernoulli(key, 0.8, x.shape), x / 0.8, 0)
    logits = x @ weights["dense"]
    loss = optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()
    return loss, (logits.argmax(-1) == y).mean()


optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(2e-5))


@legroom.step
@functools.partial(jax.jit, donate_argnums=(0, 1))
def train_step(weights, state, x, y, key):
    (loss, accuracy), gradients = jax.value_and_grad(loss_of, has_aux=True)(weights, x, y, key)
    updates, state = optimizer.update(gradients, state, weights)
    return optax.apply_updates(weights, updates), state, loss, accuracy


weights = make_weights(jax.random.key(0))
state = optimizer.init(weights)
for epoch in range(2):
    order = np.random.default_rng(epoch).permutation(len(labels)).reshape(-1, 128)
    for number, rows in enumerate(order):
        key = jax.random.key(epoch * len(order) + number)
        weights, state, loss, accuracy = train_step(
            weights, state, pictures[rows], labels[rows], key
        )
    print(f"epoch {epoch + 1}: loss {loss:.4f}, accuracy {accuracy:.2f}")
print(f"final loss: {loss:.5f}")
