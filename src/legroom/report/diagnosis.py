"""A diagnosis shown: in the terminal in about ten lines, and in a notebook.

Its text comes from a log, and what is in a log is data. In the terminal it goes into ``Text``,
which knows no markup, and control characters were taken out when it was read; in HTML every piece
is escaped.
"""

from __future__ import annotations

import contextlib
import sys
import textwrap
from collections.abc import Iterator
from html import escape
from typing import TextIO

from rich.console import Console, ConsoleOptions
from rich.text import Text

from legroom.core.errors import more
from legroom.core.units import format_bytes
from legroom.messages.diagnosis import Diagnosis, Remedy
from legroom.report.text import clean_line

__all__ = ["DiagnosisView", "diagnosis_html", "print_diagnosis"]

_WIDEST = 80
_MOST_REMEDIES = 3
_NAMES = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch", "numpy": "NumPy"}
_CSS = {"red": "#b00020", "yellow": "#8a6d00", "green": "#1b7f3b"}


def print_diagnosis(diagnosis: Diagnosis, stream: TextIO | None = None) -> None:
    """Print a diagnosis, to stdout by default; in colour only where that is wanted."""
    stream = sys.stdout if stream is None else stream
    if stream is None:
        return
    console = _Console(file=stream, highlight=False, markup=False, emoji=False)
    with contextlib.suppress(OSError, ValueError):
        console.print(DiagnosisView(diagnosis), soft_wrap=True)


class _Console(Console):
    """A console that outlives its readers; rich's own ends the process with them."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class DiagnosisView:
    """A diagnosis for the terminal: the verdict, the story, and what helps most."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self._diagnosis = diagnosis

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        diagnosis, width = self._diagnosis, max(min(options.max_width, _WIDEST), 20)
        verdict, colour = _verdict(diagnosis)
        yield Text(verdict, style=f"bold {colour}")
        for sentence in diagnosis.story.splitlines():
            yield from _wrapped(sentence, width, "  ", "  ")
        if diagnosis.remedies:
            yield Text("What to do", style="bold")
        for number, remedy in enumerate(_shown(diagnosis.remedies), start=1):
            action, note = clean_line(remedy.command or remedy.code or ""), _note(remedy)
            beside = bool(action) and len(f"     {action}  # {note}") <= width
            words = remedy.text if beside or not note else f"{remedy.text} ({note})"
            yield from _wrapped(words, width, f"  {number}. ", "     ")
            if action:
                # Never broken: it is there to be copied.
                line = Text("     ").append(action, style="cyan")
                yield line.append(f"  # {note}" if beside and note else "", style="dim")
        if diagnosis.finding:
            yield Text(more(diagnosis.finding), style="dim")


def _wrapped(text: str, width: int, first: str, rest: str) -> Iterator[Text]:
    for line in textwrap.wrap(
        clean_line(text), width, initial_indent=first, subsequent_indent=rest
    ):
        yield Text(line)


def diagnosis_html(diagnosis: Diagnosis) -> str:
    """A diagnosis for a notebook."""
    verdict, colour = _verdict(diagnosis)
    story = "<br>".join(escape(sentence) for sentence in diagnosis.story.splitlines())
    items = "".join(_item(remedy) for remedy in diagnosis.remedies)
    return (
        '<div class="legroom-diagnosis">'
        f'<p><b style="color: {_CSS[colour]}">{escape(verdict)}</b></p>'
        f"<p>{story}</p>" + (f"<ol>{items}</ol>" if items else "") + "</div>"
    )


def _item(remedy: Remedy) -> str:
    note = f" <i>({escape(note)})</i>" if (note := _note(remedy)) else ""
    action = remedy.command or remedy.code
    code = f"<br><code>{escape(action)}</code>" if action else ""
    return f"<li>{escape(remedy.text)}{note}{code}</li>"


def _shown(remedies: tuple[Remedy, ...]) -> tuple[Remedy, ...]:
    """Those that help most; all of them where somebody asked what each one saves."""
    predicted = any(remedy.predicted for remedy in remedies)
    return remedies if predicted else remedies[:_MOST_REMEDIES]


def _note(remedy: Remedy) -> str:
    saved = ""
    if remedy.bytes_saved:
        size = format_bytes(remedy.bytes_saved)
        saved = f"saves about {size}" if remedy.predicted else f"saves {size} or more"
    other = "" if remedy.exact else "another training"
    return ", ".join(part for part in (saved, other) if part)


def _verdict(diagnosis: Diagnosis) -> tuple[str, str]:
    """The headline and its colour."""
    who = _NAMES.get(diagnosis.framework or "", "")
    if diagnosis.is_oom and diagnosis.fatal:
        place = "Out of memory"
        if diagnosis.where == "host":
            place = "Out of host memory"
        elif diagnosis.where == "device":
            device = diagnosis.device
            place = f"Out of memory on {clean_line(device)}" if device else "Out of device memory"
        return place + (f" ({who})" if who else ""), "red"
    if diagnosis.is_oom is None:
        return "Perhaps out of memory", "yellow"
    if diagnosis.fatal:
        return "A failure, but not of memory", "yellow"
    return ("No failure" if diagnosis.finding else "Nothing found"), "green"
