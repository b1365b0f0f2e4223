"""A training step on its whole batch, and Keras's trainer, which asks for it."""
