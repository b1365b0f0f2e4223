"""Keras on PyTorch, and training loops in plain PyTorch."""
