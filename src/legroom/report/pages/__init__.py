"""The pages on findings and errors: part of the documentation's site, and of what is installed.

A message names its page by ``legroom explain NAME``, which works without a network.
"""

from __future__ import annotations

import re
from pathlib import Path

from rich.console import Console
from rich.markdown import Markdown

__all__ = ["page_names", "page_text", "print_page"]

_FOLDER = Path(__file__).parent


def page_names() -> list[str]:
    """The names of all pages."""
    return sorted(path.stem for path in _FOLDER.glob("*.md"))


def page_text(name: str) -> str | None:
    """A page in Markdown, whatever the case of its name; None if there is none of that name."""
    for known in page_names():
        if known.lower() == name.lower():
            return (_FOLDER / f"{known}.md").read_text(encoding="utf-8")
    return None


def print_page(text: str) -> None:
    """Show a page in the terminal; links to other pages as the command that shows them."""
    pages = re.sub(r"\[([^]]+)\]\(([\w-]+)\.md(?:#[\w-]*)?\)", r"\1 (`legroom explain \2`)", text)
    pages = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", pages)
    console = Console()
    console.print(Markdown(pages), width=min(console.width, 88))
