"""Layers computed again for their gradients: nothing is, on JAX."""
