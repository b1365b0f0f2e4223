"""Orders that nobody seeded, given a seed that another process finds again.

Without a seed of the script's own, PyTorch draws one from nowhere when a process starts; loaders
that shuffle, weights and noise all begin with it.
"""

from __future__ import annotations

import torch

__all__ = ["seed_shuffles"]


def seed_shuffles(seed: int) -> None:
    """Have PyTorch's generators begin with a seed; a script that seeds them itself overrides it."""
    torch.manual_seed(seed % 2**63)
