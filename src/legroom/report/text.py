"""Text from outside made fit for a terminal.

Names of layers, paths and messages of other libraries are data: in a terminal, a control sequence
in one of them would be obeyed, and a newline would break the one line an event has.
"""

from __future__ import annotations

import unicodedata

__all__ = ["clean_line", "clean_text"]

# Control characters, invisible formatting (which can reorder what is read), lone surrogates.
_HARMFUL = frozenset({"Cc", "Cf", "Cs"})


def clean_line(text: str) -> str:
    """The text as one line: line breaks and tabs as blanks, control characters gone."""
    return clean_text(" ".join(text.split()))


def clean_text(text: str) -> str:
    """The text without control characters; its line breaks stay."""
    return "".join(
        character
        for character in text.replace("\r\n", "\n").expandtabs(4)
        if character == "\n" or unicodedata.category(character) not in _HARMFUL
    )
