"""Pattern: one wording, as data, and how its groups are read."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.ops import plain_op
from legroom.messages.reading.sizes import (
    device_of_allocator,
    device_of_path,
    dtype_name,
    parse_bytes,
    parse_shape,
    tensor_bytes,
)

__all__ = ["Kind", "Pattern", "Stage", "line_start", "not_in_code", "wordings"]

Kind = Literal["failure", "note", "death"]
# Who tells: the driver, the allocator's log, the op's log, the exception. One failure is told by
# each in turn, so a step back means that a new failure has begun.
Stage = Literal[0, 1, 2, 3]

_REACH = 400  # how far before its key a wording is looked at
_BREAK = re.compile(r"[ \t│]{0,80}\n[ \t│>]{0,40}")
_SIZES = {
    "limit": "limit_bytes",
    "in_use": "in_use_bytes",
    "free": "free_bytes",
    "largest": "largest_free_bytes",
    "unallocated": "unallocated_bytes",
    "process_size": "process_bytes",
}


def not_in_code(before: str) -> re.Pattern[str]:
    """What may stand before the name of an error: not the code that catches or raises it.

    Tracebacks show lines of code, and ``except MemoryError:`` says that someone thought of it, not
    that it happened.

    Args:
        before: What must stand right before the name, as an expression.
    """
    code = r"\b(?:except|raise|raises|import|isinstance|issubclass|catch|class|def)\b"
    return re.compile(rf"^(?![^\n]{{0,400}}{code})[^\n]{{0,400}}?{before}$")


def line_start(text: str, position: int) -> int:
    """Where the line begins; in a line without end, a little way back."""
    back = max(position - 2048, 0)
    newline = text.rfind("\n", back, position)
    return newline + 1 if newline >= 0 else back


@dataclasses.dataclass(frozen=True, slots=True)
class Pattern:
    """One wording of one framework.

    A pattern is tried where its key stands and nowhere else, and its expressions match a bounded
    length: so the time to read a log is linear in the log, whatever the log holds.

    Attributes:
        name: Unique; the fixture that shows the wording has the same name.
        key: Text that the wording always contains.
        regex: Matched where the key begins, or where its line begins (see ``from_line``).
        finding: The page of ``report/pages`` that tells more.
        kind: ``failure``: something ran out. ``note``: it looks so. ``death``: a process ended.
        framework: Who says so. None: the surroundings tell.
        fallback: The framework, where the surroundings don't tell either.
        where: ``device``, ``host`` or ``disk``, where the wording leaves no other.
        device: Likewise.
        is_oom: Whether it means that memory ran out. None: it may.
        fatal: Whether the work it was for is lost.
        stage: Who tells it.
        weak: It says that, but not what: any better account of the same failure replaces it.
        from_line: Match from the beginning of the line instead of from the key.
        before: Searched in what stands before the key on its line, for more.
        only_after: What must stand before the key.
        after: Each searched in what follows, up to a bound.
        binary: Whether this writer's ``GB`` means GiB.
    """

    name: str
    key: str
    regex: re.Pattern[str]
    finding: str
    kind: Kind = "failure"
    framework: str | None = None
    fallback: str | None = None
    where: str | None = None
    device: str | None = None
    is_oom: bool | None = True
    fatal: bool = True
    stage: Stage = 3
    weak: bool = False
    from_line: bool = False
    before: re.Pattern[str] | None = None
    only_after: re.Pattern[str] | None = None
    after: tuple[re.Pattern[str], ...] = ()
    binary: bool = False

    def matches(self, text: str, end: int | None) -> Iterator[tuple[int, re.Match[str]]]:
        """Every place in a text where the wording stands, and its match."""
        stop = len(text) if end is None else end
        position = text.find(self.key, 0, stop)
        if position < 0:
            return
        if not self.from_line:
            # The expression begins with the key, so this looks at keys only, and does so in C.
            for match in self.regex.finditer(text, position):
                if match.start() >= stop:
                    return
                yield match.start(), self._unwrapped(match)
            return
        while position >= 0:
            line = line_start(text, position)
            whole = self.regex.match(text, line) if position - line <= _REACH else None
            if whole is not None and whole.end() > position:
                yield position, whole
            position = text.find(self.key, position + len(self.key), stop)

    def _unwrapped(self, match: re.Match[str]) -> re.Match[str]:
        """The match with the next lines, where the wording was broken to fit a window."""
        text, begin, end = match.string, match.start(), match.end()
        line_end = text.find("\n", end, end + 120)
        if line_end < 0 or text[end:line_end].strip():
            return match
        mended = self.regex.match(_BREAK.sub(" ", text[begin : begin + 1200]))
        return mended if mended is not None and mended.end() > end - begin else match

    def groups(self, text: str, position: int, match: re.Match[str]) -> dict[str, str] | None:
        """What the wording says at one place, or None if what stands before it does not fit."""
        found = {name: value for name, value in match.groupdict().items() if value is not None}
        if self.before is not None or self.only_after is not None:
            ahead = text[max(line_start(text, position), position - _REACH) : position]
            if self.only_after is not None and self.only_after.search(ahead) is None:
                return None
            if self.before is not None and (told := self.before.search(ahead)) is not None:
                found |= {k: v for k, v in told.groupdict().items() if v is not None}
        if self.after:
            rest = match.string[match.end() : match.end() + 1600]
            for expression in self.after:
                behind = expression.search(rest)
                if behind is not None:
                    for name, value in behind.groupdict().items():
                        if value is not None:
                            found.setdefault(name, value)
        return found

    def facts(self, groups: dict[str, str]) -> Facts:
        """Read the groups."""
        facts = Facts(framework=self.framework, where=self.where, device=self.device)
        facts.shape = parse_shape(groups.get("shape"))
        facts.dtype = dtype_name(groups.get("dtype"))
        asked = parse_bytes(groups.get("bytes")) or parse_bytes(
            groups.get("size"), binary=self.binary
        )
        whole = tensor_bytes(facts.shape, facts.dtype)
        # A printed size is rounded, the product is not; where they differ the print is right.
        agree = asked is None or whole is None or abs(asked - whole) <= 0.01 * asked
        facts.requested_bytes = (whole if agree and whole else asked) or None
        for group, field in _SIZES.items():
            if group in groups:
                setattr(facts, field, parse_bytes(groups[group], binary=self.binary))
        reserved = parse_bytes(groups.get("reserved"), binary=self.binary)
        if reserved is not None and facts.in_use_bytes is not None:
            facts.unallocated_bytes = max(reserved - facts.in_use_bytes, 0)
        self._read_device(groups, facts)
        if "op" in groups and (op := plain_op(groups["op"])):
            facts.op = clean(op)
        for group in ("layer", "memory_space", "process", "data_format", "op_kind"):
            if group in groups:
                setattr(facts, group, clean(groups[group], 120) or None)
        return facts

    def _read_device(self, groups: dict[str, str], facts: Facts) -> None:
        device, where = device_of_path(groups.get("device"))
        if "ordinal" in groups:
            kind = groups.get("device_kind", "GPU").upper()
            device, where = f"{kind}:{int(groups['ordinal'])}", "device"
        by_allocator, place = device_of_allocator(groups.get("allocator"))
        # Pinned host memory is allocated for a device: the allocator knows where it lies.
        facts.where = place or where or facts.where
        facts.device = device or by_allocator or facts.device


def wordings(finding: str, **common: Any) -> Callable[..., Pattern]:
    """What makes the rows of a table, of wordings that mean the same.

    Args:
        finding: The page of ``report/pages`` that tells more.
        common: What else they have in common: attributes of a `Pattern`.

    Returns:
        A function of a row: its name, its key, and the expression, where that is more than the
        key. Expressions are given as text.
    """

    def compiled(expression: str | re.Pattern[str] | None) -> re.Pattern[str] | None:
        return None if expression is None else re.compile(expression)

    def row(
        name: str,
        key: str,
        regex: str | re.Pattern[str] | None = None,
        *,
        before: str | re.Pattern[str] | None = None,
        only_after: str | re.Pattern[str] | None = None,
        after: Sequence[str | re.Pattern[str]] = (),
        **rest: Any,
    ) -> Pattern:
        return Pattern(
            name=name,
            key=key,
            regex=re.compile(re.escape(key) if regex is None else regex),
            finding=finding,
            before=compiled(before),
            only_after=compiled(only_after),
            after=tuple(re.compile(expression) for expression in after),
            **{**common, **rest},
        )

    return row
