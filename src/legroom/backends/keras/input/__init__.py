"""Keras's way through its data."""
