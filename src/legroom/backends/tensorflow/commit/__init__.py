"""Gradients caught on their way to the optimizer, and applied wholly or not at all."""
