"""Bytes out of files, pipes and notebooks, in blocks that end where a line ends.

A log may be larger than memory, a line may be larger than a block, and a pipe may still be
written to. What is held at a time is one block.
"""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any, BinaryIO

__all__ = ["BLOCK", "Block", "Reader", "notebook_text", "plain_text"]

BLOCK = 128 * 1024
# A line longer than a block is read in pieces; this much of each comes again in the next one, so
# that a message on the cut is read whole.
_OVERLAP = 4 * 1024
# A notebook is read whole, since its text is inside JSON strings. Beyond this it holds pictures
# that nobody wants in memory, and is read line by line.
_LARGEST_NOTEBOOK = 24 * 1024 * 1024

_LONGEST_LINE = 4 * 1024 * 1024
_KEY = re.compile(rb'\s{0,64}"([^"\\]{1,80})": ')
_SPOKEN = (b"text", b"text/plain", b"traceback")

_BOMS = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
# CSI ("\x1b[31m"), OSC ("\x1b]0;title\x07"), and the two-character sequences.
_ESCAPES = re.compile(
    r"\x1b(?:\[[0-?]{0,64}[ -/]{0,8}[@-~]|\][^\x07\x1b\n]{0,512}(?:\x07|\x1b\\)?|[ -/]{0,4}[0-~])"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """A piece of a log.

    Attributes:
        data: The bytes; they end at the end of a line where there is one.
        start: Where in the log they begin.
        repeated: How many bytes at the end will come again, at the start of the next block.
        last: Whether the log ends here.
    """

    data: bytes
    start: int = 0
    repeated: int = 0
    last: bool = False


class Reader:
    """Reads a stream to its end, or until the user has seen enough.

    Attributes:
        interrupted: Whether Ctrl-C ended the reading. What was read until then is not lost.

    Args:
        stream: What to read.
        notebook: Whether it is a Jupyter notebook. None: by its first bytes.
    """

    def __init__(self, stream: BinaryIO, *, notebook: bool | None = None) -> None:
        self._stream = stream
        self._notebook = notebook
        self.interrupted = False

    def blocks(self) -> Iterator[Block]:
        """The log, block by block."""
        chunks = self._chunks()
        first = next(chunks, b"")
        if self._notebook or (self._notebook is None and _looks_like_notebook(first)):
            chunks = _notebook_chunks(first, chunks)
            first = next(chunks, b"")
        for bom, encoding in _BOMS.items():
            if first.startswith(bom):  # what PowerShell's ">" writes
                chunks = _recoded(first[len(bom) :], chunks, encoding)
                first = next(chunks, b"")
        yield from _cut(first, chunks)

    def _chunks(self) -> Iterator[bytes]:
        """At least a block at a time, less at the end: a pipe gives a few bytes at a time."""
        read = getattr(self._stream, "read1", None) or self._stream.read
        parts: list[bytes] = []
        held = 0
        while True:
            try:
                data = read(BLOCK)
            except KeyboardInterrupt:
                self.interrupted = True
                data = b""
            if data:
                parts.append(data)
                held += len(data)
            if held >= BLOCK or (parts and not data):
                yield b"".join(parts)
                parts, held = [], 0
            if not data:
                return


def _cut(first: bytes, chunks: Iterator[bytes]) -> Iterator[Block]:
    """Cut at the ends of lines; a line longer than a block in overlapping pieces."""
    pending, start = first, 0
    for chunk in chunks:
        # A carriage return ends a line as well: a progress bar may never write another end.
        end = max(pending.rfind(b"\n"), pending.rfind(b"\r")) + 1
        if end:
            yield Block(pending[:end], start)
            pending, start = pending[end:], start + end
        elif len(pending) >= BLOCK:
            yield Block(pending, start, repeated=_OVERLAP)
            pending, start = pending[-_OVERLAP:], start + len(pending) - _OVERLAP
        pending += chunk
    while len(pending) > 2 * BLOCK:
        end = max(pending.rfind(b"\n", 0, BLOCK), pending.rfind(b"\r", 0, BLOCK)) + 1
        piece = pending[: end or BLOCK]
        repeated = 0 if end else _OVERLAP
        yield Block(piece, start, repeated)
        pending, start = pending[len(piece) - repeated :], start + len(piece) - repeated
    yield Block(pending, start, last=True)


def _recoded(first: bytes, chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    yield decoder.decode(first).encode("utf-8", "replace")
    for chunk in chunks:
        yield decoder.decode(chunk).encode("utf-8", "replace")
    yield decoder.decode(b"", True).encode("utf-8", "replace")


def _looks_like_notebook(first: bytes) -> bool:
    head = first[:4096].lstrip()
    return head.startswith(b"{") and (b'"cells"' in head or b'"nbformat"' in head)


def _notebook_chunks(first: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    data = io.BytesIO()
    data.write(first)
    for chunk in chunks:
        data.write(chunk)
        if data.tell() > _LARGEST_NOTEBOOK:
            yield from _large_notebook(data.getvalue(), chunks)
            return
    whole = data.getvalue()
    text = notebook_text(whole)
    yield whole if text is None else text.encode("utf-8", "replace")


def _large_notebook(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """What a notebook's output cells say, line by line.

    Jupyter writes each line of an output as a line of its own, a JSON string in a list. A notebook
    that some other program wrote on one line is read as it is, escapes and all.
    """
    everything = itertools.chain((head,), chunks)
    if head.count(b"\n", 0, BLOCK) < 16:
        yield from everything
        return
    del head
    key, told, held = b"", [], 0
    for line in _lines(everything):
        opened = _KEY.match(line)
        if opened is not None:
            key = opened.group(1)
            line = line[opened.end() :]
        text = _string(line) if key in _SPOKEN else None
        if text is not None:
            told.append(text)
            held += len(text)
        if held >= BLOCK:
            yield b"".join(told)
            told, held = [], 0
    yield b"".join(told)


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Lines; of one that is longer than any line of text, a picture, the beginning only."""
    rest = b""
    for chunk in chunks:
        *lines, last = chunk.split(b"\n")
        for line in lines:
            yield rest + line
            rest = b""
        if len(rest) < _LONGEST_LINE:
            rest += last
    yield rest


def _string(line: bytes) -> bytes | None:
    """The text of a line that is one JSON string, or None where it is something else."""
    line = line.strip().removesuffix(b",")
    if not line.startswith(b'"'):
        return None
    try:
        text = json.loads(line)
    except ValueError:
        return None
    if not isinstance(text, str):
        return None
    # The lines of a traceback have no ends.
    return (text if text.endswith("\n") else text + "\n").encode("utf-8", "replace")


def notebook_text(data: bytes) -> str | None:
    """What the output cells of a Jupyter notebook say, or None if it is no notebook."""
    try:
        notebook = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(notebook, dict):
        return None
    cells = notebook.get("cells")
    if not isinstance(cells, list):  # before version 4 of the format
        cells = [
            cell
            for sheet in _dicts(notebook.get("worksheets"))
            for cell in _dicts(sheet.get("cells"))
        ]
    parts: list[str] = []
    for cell in _dicts(cells):
        for output in _dicts(cell.get("outputs")):
            parts += _output_text(output)
    return "\n".join(parts)


def _output_text(output: dict[str, Any]) -> Iterator[str]:
    yield _joined(output.get("text"))
    data = output.get("data")
    if isinstance(data, dict):
        yield _joined(data.get("text/plain"))
    traceback = output.get("traceback")
    if isinstance(traceback, list):
        yield "\n".join(line for line in traceback if isinstance(line, str))
    name, value = output.get("ename"), output.get("evalue")
    # The traceback ends with the error itself, where there is one.
    if isinstance(name, str) and not traceback:
        yield f"{name}: {value}"


def _joined(text: Any) -> str:
    if isinstance(text, list):
        return "".join(part for part in text if isinstance(part, str))
    return text if isinstance(text, str) else ""


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def plain_text(data: bytes) -> str:
    """A block as text: no colours, and every line end a newline."""
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ESCAPES.sub("", text)
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    return text
