"""Orders that nobody seeded: JAX draws none by itself."""

from __future__ import annotations

__all__ = ["seed_shuffles"]


def seed_shuffles(seed: int) -> None:
    """Give shuffles without a seed one; there are none of JAX's own."""
