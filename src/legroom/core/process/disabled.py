"""``LEGROOM_DISABLE=1``: everything runs as it would without legroom."""

from __future__ import annotations

import os

__all__ = ["DISABLE_VARIABLE", "is_disabled"]

DISABLE_VARIABLE = "LEGROOM_DISABLE"


def is_disabled() -> bool:
    """Whether the user has switched legroom off for this process, by the environment."""
    return os.environ.get(DISABLE_VARIABLE, "").strip().lower() not in ("", "0", "false", "no")
