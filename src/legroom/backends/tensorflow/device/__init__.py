"""The memory TensorFlow trains in: its limit, what is in use, and running out of it."""
