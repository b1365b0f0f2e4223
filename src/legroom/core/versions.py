"""Which versions of other packages are installed; none of them is imported for it."""

from __future__ import annotations

import contextlib
import importlib.metadata
from collections.abc import Iterable

__all__ = ["installed"]


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of these packages that are there."""
    found: dict[str, str] = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found
