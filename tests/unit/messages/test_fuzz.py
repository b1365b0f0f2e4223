# ruff: noqa: E501  (messages are as long as they are)
"""Any input is answered: random bytes, cut and shuffled logs, food for regular expressions.

The same check runs for minutes, guided by coverage, in ``test_fuzz_long``.
"""

from __future__ import annotations

import io
import random
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from legroom.messages import Diagnosis, diagnose_stream, diagnose_text
from legroom.messages.patterns import PATTERNS
from legroom.messages.patterns.details import DETAILS
from legroom.report.diagnosis import DiagnosisView, diagnosis_html

OOM = Path(__file__).parents[2] / "fixtures" / "oom"
TEXTS = [path.read_bytes() for path in sorted(OOM.glob("*/*.txt"))]
LINES = [line for text in TEXTS for line in text.splitlines(keepends=True)]
KEYS = sorted({one.key for one in (*PATTERNS, *DETAILS)})
BITS = [
    "[",
    "]",
    "{{",
    "}}",
    "(",
    ")",
    "\n",
    "\r",
    " ",
    "  ",
    "\t",
    ",",
    ".",
    "/",
    "9" * 30,
    "1",
    "0",
]
BITS += [
    "GiB",
    "MiB",
    "bytes",
    "shape[",
    "type float",
    "node ",
    "Op:",
    "\x1b[31m",
    "\u202e",
    "\x00",
    "é",
]


def check(diagnosis: Diagnosis) -> None:
    """What holds for every diagnosis."""
    assert Diagnosis.from_json(diagnosis.to_json()) == diagnosis
    assert diagnosis.framework in (None, "tensorflow", "jax", "torch", "numpy", "system")
    assert diagnosis.where in (None, "device", "host", "disk")
    for size in (
        diagnosis.requested_bytes, diagnosis.limit_bytes, diagnosis.in_use_bytes,
        diagnosis.largest_free_bytes, *(remedy.bytes_saved for remedy in diagnosis.remedies),
    ):  # fmt: skip
        assert size is None or 0 <= size < 2**63
    if diagnosis.is_oom is False:
        assert diagnosis.op is None
        assert diagnosis.shape is None
        assert diagnosis.failures == 0
    words = [
        diagnosis.device,
        diagnosis.op,
        diagnosis.layer,
        diagnosis.first_error,
        diagnosis.final_error,
    ]
    words += diagnosis.story.split("\n")
    words += [remedy.text for remedy in diagnosis.remedies]
    assert all(word is None or (word.isprintable() and len(word) < 1000) for word in words)
    stream = io.StringIO()
    Console(file=stream, width=80, markup=False, highlight=False).print(DiagnosisView(diagnosis))
    assert all(char.isprintable() or char == "\n" for char in stream.getvalue())
    assert diagnosis_html(diagnosis).count("<script") == 0


@given(st.binary(max_size=4000))
def test_random_bytes(data: bytes) -> None:
    check(diagnose_text(data))
    check(diagnose_stream(io.BytesIO(data), notebook=True))


@given(st.text(max_size=2000))
def test_random_text(text: str) -> None:
    check(diagnose_text(text))


@settings(max_examples=300)
@given(st.data())
def test_logs_cut_and_shuffled(data: st.DataObject) -> None:
    lines = data.draw(st.lists(st.sampled_from(LINES), max_size=30))
    text = b"".join(lines)
    start, end = sorted(data.draw(st.tuples(st.integers(0, len(text)), st.integers(0, len(text)))))
    check(diagnose_text(text[start:end]))


@settings(max_examples=300)
@given(st.lists(st.sampled_from(KEYS + BITS), max_size=60))
def test_pieces_of_wordings_in_any_order(pieces: list[str]) -> None:
    check(diagnose_text("".join(pieces)))
    check(diagnose_text(" ".join(pieces)))


@given(st.sampled_from(TEXTS), st.integers(0, 2**32), st.integers(1, 30))
def test_logs_with_damaged_bytes(text: bytes, seed: int, number: int) -> None:
    dice = random.Random(seed)
    damaged = bytearray(text)
    for _ in range(number):
        damaged[dice.randrange(len(damaged))] = dice.randrange(256)
    check(diagnose_text(bytes(damaged)))


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_every_cut_of_every_sample(text: bytes) -> None:
    """A log may end anywhere; what is left is never read as something it is not."""
    whole = diagnose_text(text)
    step = max(len(text) // 150, 1)
    for end in range(0, len(text), step):
        part = diagnose_text(text[:end])
        check(part)
        if b"freed_by_count" in text:
            continue  # cut before these words, a note looks like a failure
        if part.is_oom and part.fatal and whole.failures == 1 and part.failures == 1:
            for name in ("requested_bytes", "shape", "dtype"):
                known, said = getattr(whole, name), getattr(part, name)
                if name == "requested_bytes" and known and said:
                    # Until the allocator speaks, only the driver's figure is known; a size for
                    # people may be all there is.
                    assert said >= 0.98 * known, (end, name)
                else:
                    assert said in (None, known), (end, name)


FOOD = [
    *(key for key in KEYS if key.strip()), "[[{{node ", "shape[1,", "9", "\x1b[", "\x1b]", "\r", "(((((",
    "Tried to allocate 1 GiB. GPU ", "Size: 1GiB ", "exit code ", "/job:a/device:GPU:0 ",
]  # fmt: skip


@pytest.mark.parametrize("food", FOOD, ids=repr)
def test_food_for_regular_expressions(food: str) -> None:
    """Each is repeated to one line of a quarter of a megabyte: slower than linear would show."""
    data = (food * (250_000 // len(food) + 1)).encode()
    begin = time.perf_counter()
    check(diagnose_text(data))
    assert time.perf_counter() - begin < 10  # a tenth of a second where nothing else runs
