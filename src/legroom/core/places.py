"""Where the user's code stands, as the user knows it: in a file, or in the cell of a notebook."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any

__all__ = ["near_place", "notebook", "short_place"]


def notebook() -> Any:
    """IPython's shell, if this process runs a notebook or an IPython session; else None."""
    return getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()


def short_place(place: str) -> str:
    """A place (``file:line``) as it is named in a sentence: without its folder."""
    return _in_cell(place) or os.path.basename(place)


def near_place(place: str) -> str:
    """A place with its path from here, where that is shorter."""
    name, _, line = place.rpartition(":")
    if line.isdigit() and os.path.isabs(name):
        with contextlib.suppress(ValueError, OSError):
            near = os.path.relpath(name)
            return _in_cell(place) or f"{near if len(near) < len(name) else name}:{line}"
    return place


def _in_cell(place: str) -> str:
    """The cell and its line, if the file is what IPython made of a cell; else nothing."""
    name, _, line = place.rpartition(":")
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        label, number = notebook().compile.format_code_name(name)
        return f"{label.lower()} {number}, line {line}"  # cell In[5], line 6
    return ""
