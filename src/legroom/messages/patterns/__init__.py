"""The wordings, as data: one table a framework, and a fixture for each wording.

Adding one means adding a row here and a file of its name under
``tests/fixtures/oom/wordings``. Order matters only between patterns that match at the same place:
the first one that is not weak tells the story.
"""

from __future__ import annotations

from legroom.messages.patterns import (
    cuda_libraries,
    deaths,
    jax,
    lookalikes,
    numpy,
    system,
    tensorflow,
    torch,
)
from legroom.messages.patterns.pattern import Kind, Pattern

__all__ = ["PATTERNS", "Kind", "Pattern"]

PATTERNS: tuple[Pattern, ...] = (
    *tensorflow.PATTERNS,
    *cuda_libraries.PATTERNS,
    *jax.PATTERNS,
    *torch.PATTERNS,
    *numpy.PATTERNS,
    *system.PATTERNS,
    *deaths.PATTERNS,
    *lookalikes.PATTERNS,
)
