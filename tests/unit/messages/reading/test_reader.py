# ruff: noqa: E501  (messages are as long as they are)
"""Blocks out of streams, whatever the stream: cut at lines, never too large, nothing lost."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.messages import diagnose_stream, diagnose_text
from legroom.messages.reading.reader import BLOCK, Reader, notebook_text, plain_text

OOM = b"OOM when allocating tensor with shape[8,32,32,16] and type float on /device:GPU:0 by allocator GPU_0_bfc"


class Drip(io.RawIOBase):
    """A pipe that gives a few bytes at a time."""

    def __init__(self, data: bytes, step: int) -> None:
        self._data, self._step = data, step

    def readable(self) -> bool:
        return True

    def read1(self, size: int) -> bytes:
        piece, self._data = self._data[: self._step], self._data[self._step :]
        return piece


def together(data: bytes, step: int | None = None) -> bytes:
    stream: Any = io.BytesIO(data) if step is None else Drip(data, step)
    whole = b""
    blocks = list(Reader(stream, notebook=False).blocks())
    assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
    for block in blocks:
        assert len(block.data) <= 3 * BLOCK
        assert block.start == len(whole)
        whole += block.data[: len(block.data) - block.repeated]
    return whole


@given(st.lists(st.binary(max_size=200), max_size=40), st.sampled_from([b"\n", b"\r", b"\r\n"]))
def test_nothing_is_lost(lines: list[bytes], end: bytes) -> None:
    data = end.join(lines)
    if not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        assert together(data) == data
        assert together(data, step=7) == data


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 10 * BLOCK + 17])
def test_lines_of_any_length(size: int) -> None:
    for data in (b"x" * size, b"x" * size + b"\n", (b"x" * 99 + b"\n") * (size // 100)):
        assert together(data) == data


@pytest.mark.parametrize(
    "before", [0, 1, BLOCK - 300, BLOCK - 50, BLOCK, 2 * BLOCK - 60, 5 * BLOCK + 3]
)
def test_a_message_in_a_line_of_megabytes(before: int) -> None:
    """Wherever the pieces are cut, it is read whole, and once."""
    data = b"x" * before + b" " + OOM + b" " + b"y" * 10_000_000
    diagnosis = diagnose_stream(io.BytesIO(data))
    assert diagnosis.shape == (8, 32, 32, 16)
    assert diagnosis.device == "GPU:0"
    assert diagnosis.failures == 1


def test_what_powershell_writes() -> None:
    for encoding in ("utf-16-le", "utf-16-be"):
        data = ("\ufeff" + "Epoch 1\r\n" * 30_000 + OOM.decode() + "\r\n").encode(encoding)
        assert diagnose_stream(io.BytesIO(data)).shape == (8, 32, 32, 16)


def test_plain_text() -> None:
    assert plain_text(b"a\x1b[31mb\x1b[0;1mc\x1b[K\r\nd\re\x1b]0;t\x07f\x1b(Bg") == "abc\nd\nefg"
    assert plain_text(b"\xff\xfe\x80") == "\ufffd" * 3
    assert plain_text(b"\x1b") == "\x1b"  # dropped when it is shown


def notebook(*outputs: dict[str, Any]) -> bytes:
    return json.dumps({"cells": [{"outputs": list(outputs)}, {}], "nbformat": 4}).encode()


def test_outputs_of_a_notebook() -> None:
    text = notebook_text(
        notebook(
            {"output_type": "stream", "text": ["a\n", "b\n"]},
            {"output_type": "stream", "text": "c"},
            {"output_type": "execute_result", "data": {"text/plain": ["d"], "image/png": "e"}},
            {"output_type": "error", "ename": "E", "evalue": "f", "traceback": ["g", "E: f"]},
            {"output_type": "error", "ename": "E", "evalue": "h", "traceback": []},
        )
    )
    assert text is not None
    assert [word for word in text.split() if word] == [
        "a",
        "b",
        "c",
        "d",
        "g",
        "E:",
        "f",
        "E:",
        "h",
    ]


def test_a_notebook_of_the_old_format() -> None:
    old = {"worksheets": [{"cells": [{"outputs": [{"text": ["Killed\n"]}]}]}], "nbformat": 3}
    assert "Killed" in (notebook_text(json.dumps(old).encode()) or "")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"3", b'{"cells": 3}', b'{"cells": [3, null, {"outputs": 3}]}',
        b'{"cells": [{"outputs": [{"text": {"a": 1}, "data": [], "traceback": "x", "ename": 3}]}]}',
        b'{"worksheets": [[], {"cells": "x"}]}', b"[" * 100_000, b'{"a":' * 100_000,
    ],
    ids=lambda data: repr(data[:40]),
)  # fmt: skip
def test_notebooks_that_are_none(data: bytes) -> None:
    notebook_text(data)
    assert diagnose_stream(io.BytesIO(data), notebook=True).is_oom is False


def test_a_notebook_with_large_pictures() -> None:
    """Too large to be read as JSON in little memory: its lines are read as they stand."""
    picture = {"output_type": "display_data", "data": {"image/png": "A" * 30_000_000}}
    data = notebook(picture, {"output_type": "stream", "text": [OOM.decode() + "\n"]})
    assert diagnose_stream(io.BytesIO(data), notebook=True).shape == (8, 32, 32, 16)


def test_an_interrupt_ends_the_reading_and_not_the_answer() -> None:
    class Interrupted(Drip):
        def read1(self, size: int) -> bytes:
            data = super().read1(size)
            if not data:
                raise KeyboardInterrupt
            return data

    reader = Reader(Interrupted(OOM, 5))  # type: ignore[arg-type]
    assert b"".join(block.data for block in reader.blocks()) == OOM
    assert reader.interrupted


@pytest.mark.parametrize("indent", [1, None])
def test_a_notebook_larger_than_fits(indent: int | None) -> None:
    """Thirty megabytes of pictures around a failure; what stands in the code is not said."""
    picture = {"output_type": "display_data", "data": {"image/png": "iVBORw0KGgo" * 300_000}}
    failure = {
        "output_type": "error", "ename": "ResourceExhaustedError", "evalue": "…",
        "traceback": ["\x1b[0;31mResourceExhaustedError\x1b[0m: OOM when allocating tensor with "
                      "shape[7,5] and type float on /device:GPU:1 by allocator GPU_1_bfc", "…"],
    }  # fmt: skip
    says = {"output_type": "stream", "name": "stdout", "text": ["Epoch 1/5\n", "1/9\r"]}
    cells = [{"cell_type": "code", "outputs": [picture], "source": ["# Killed\n"]}] * 5
    cells += [{"cell_type": "code", "outputs": [says, failure], "source": ["std::bad_alloc"]}]
    cells += [{"cell_type": "code", "outputs": [picture], "source": []}] * 5
    data = json.dumps({"cells": cells, "nbformat": 4}, indent=indent).encode()
    assert len(data) > 30_000_000
    diagnosis = diagnose_text(data)
    assert (diagnosis.shape, diagnosis.device) == ((7, 5), "GPU:1")
    assert diagnosis.final_error is None or indent is None
