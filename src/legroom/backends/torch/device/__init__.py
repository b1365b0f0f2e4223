"""PyTorch's memory: its limit, what is in use, running out."""
