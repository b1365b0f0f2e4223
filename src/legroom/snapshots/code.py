"""Fingerprints of code: has a script, or a module beside it, been edited?

Imports no NumPy: the parent of ``legroom run`` asks too.
"""

from __future__ import annotations

import ast
import hashlib
import sys
from pathlib import Path

__all__ = ["code_of", "imported_code"]


def code_of(path: Path) -> str:
    """A fingerprint of a file's code; comments, blank lines and formatting are not part of it."""
    try:
        tree = ast.parse(path.read_bytes())
        return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ""


def imported_code(folder: Path) -> dict[str, str]:
    """Fingerprints of the modules that were imported from a script's own folder."""
    found = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.endswith(".py") or module.__name__ == "__main__":
            continue
        path = Path(file)
        if path.is_relative_to(folder) and "site-packages" not in path.parts:
            found[f"the code of {path.relative_to(folder)}"] = code_of(path)
    return found
