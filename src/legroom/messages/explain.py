"""From text, streams and exceptions to a diagnosis."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from legroom.core.errors import OutOfMemoryError
from legroom.messages.case import Case, judge
from legroom.messages.diagnosis import Diagnosis
from legroom.messages.exceptions import chain_text
from legroom.messages.model import ModelAtHand, tie
from legroom.messages.reading.collector import Collector
from legroom.messages.reading.facts import clean
from legroom.messages.reading.reader import Block, Reader, plain_text
from legroom.messages.reading.scan import Scanner
from legroom.messages.remedies import propose
from legroom.messages.story import tell

__all__ = [
    "diagnose_exception",
    "diagnose_reader",
    "diagnose_stream",
    "diagnose_text",
    "explain",
    "translate",
]

# A text this short may be a paste from a window: then a line that broke at its edge is mended.
_PASTE = 16 * 1024
# What the mended text must not say otherwise, and may say where the lines do not.
_COMPARED = (
    *("framework", "where", "device", "requested_bytes", "shape", "dtype"),
    *("limit_bytes", "in_use_bytes", "free_bytes", "unallocated_bytes"),
)
_BROKEN = re.compile(r"[ \t]{0,8}\n[ \t]{0,8}")


def explain(
    subject: BaseException | str | bytes | os.PathLike[str], model: ModelAtHand | None = None
) -> Diagnosis:
    """Say what an exception, a message or a log means: what ran out, why, and what to do.

    Args:
        subject: The exception that was caught, the text of a message or of a whole log, or the
            path of a log or notebook as a ``pathlib.Path``.
        model: The model that was trained, as a backend read it, where it is at hand.

    Returns:
        A `Diagnosis`. It shows itself in a notebook and with ``rich.print``.
    """
    if isinstance(subject, BaseException):
        return diagnose_exception(subject, model)
    if isinstance(subject, (str, bytes, bytearray)):
        return diagnose_text(subject, model)
    if isinstance(subject, os.PathLike):
        path = Path(subject)
        with path.open("rb") as stream:
            reader = Reader(stream, notebook=path.suffix == ".ipynb" or None)
            return diagnose_reader(reader, model)
    raise TypeError(
        f"explain() takes an exception, a text or a path. Received: {type(subject).__name__}"
    )


def diagnose_text(text: str | bytes | bytearray, model: ModelAtHand | None = None) -> Diagnosis:
    """Diagnose a message, or a log that is in memory already."""
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    return diagnose_reader(Reader(io.BytesIO(text)), model)


def _tells_more(mended: Case, case: Case) -> bool:
    """Whether joined lines say the same as the lines do, and more."""
    if mended.cause is None or mended.cause.pattern.weak or not mended.is_oom:
        return False
    if case.cause is None:
        return True
    if mended.cause.pattern.name != case.cause.pattern.name or mended.failures != case.failures:
        return False
    # A name that ends with its line must not grow by the next line's first word.
    if (mended.facts.op, mended.facts.layer) != (case.facts.op, case.facts.layer):
        return False
    pairs = [(getattr(case.facts, name), getattr(mended.facts, name)) for name in _COMPARED]
    return all(old in (None, new) for old, new in pairs) and any(old != new for old, new in pairs)


def diagnose_stream(stream: BinaryIO, *, notebook: bool | None = None) -> Diagnosis:
    """Diagnose a log of any length, in bounded memory. Ctrl-C ends the reading, not the answer."""
    return diagnose_reader(Reader(stream, notebook=notebook))


def diagnose_reader(reader: Reader, model: ModelAtHand | None = None) -> Diagnosis:
    """Diagnose what a reader gives, for callers who ask it afterwards how the reading ended."""
    blocks = reader.blocks()
    first = next(blocks)
    case = _case(itertools.chain((first,), blocks))
    if first.last and len(first.data) <= _PASTE and b"\n" in first.data.strip():
        # Terminals and issue trackers break long lines; try what it was before.
        words = plain_text(first.data)
        for mended in (" ", ""):
            again = _case([Block(_BROKEN.sub(mended, words).encode("utf-8", "replace"), last=True)])
            if _tells_more(again, case):
                case = again
                break
    return _diagnosis(case, model)


def diagnose_exception(error: BaseException, model: ModelAtHand | None = None) -> Diagnosis:
    """Diagnose an exception with its causes. Needs none of the frameworks."""
    return diagnose_text(chain_text(error), model)


def translate(error: BaseException) -> OutOfMemoryError | None:
    """The same failure as an error of ours, or None where memory did not run out.

    Raise it from the original, which keeps what the framework said::

        if (ours := translate(error)) is not None:
            raise ours from error
    """
    diagnosis = diagnose_exception(error)
    return OutOfMemoryError(diagnosis.story) if diagnosis.is_oom and diagnosis.fatal else None


def _case(blocks: Iterable[Block]) -> Case:
    scanner, seen = Scanner(), Collector()
    for block in blocks:
        for found in scanner.feed(block):
            seen.feed(found)
    return judge(seen)


def _diagnosis(case: Case, model: ModelAtHand | None) -> Diagnosis:
    facts, cause = case.facts, case.cause
    bond, advice = None, None
    if model is not None and case.is_oom and case.fatal and cause is not None:
        bond = tie(case, model)
        if bond.layer is not None:
            facts.layer = clean(bond.layer.name, 120)
        # An array of NumPy's is data, not the model's; and of another model nothing is known.
        if bond.missing is None and facts.framework != "numpy":
            advice = model.advise(bond.batch, facts.limit_bytes, facts.device)
    fields: dict[str, Any] = {
        name: getattr(facts, name)
        for name in (
            "framework", "where", "device", "requested_bytes", "shape", "dtype", "op", "layer",
            "limit_bytes", "in_use_bytes", "largest_free_bytes",
        )
    }  # fmt: skip
    return Diagnosis(
        is_oom=case.is_oom,
        fatal=case.fatal,
        fragmented=case.fragmented,
        growth=case.growth,
        story=tell(case, bond, advice),
        remedies=propose(case, advice),
        finding=cause.finding if cause else None,
        failures=case.failures,
        first_error=cause.text if cause else None,
        final_error=case.blow.text if case.blow else None,
        **fields,
    )
