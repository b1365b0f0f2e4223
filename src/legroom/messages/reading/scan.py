"""From blocks of a log to the sightings in it: what was said, where, by which worker.

Most of a log is about something else. Each block is first reduced to its small letters, which is
done by C code at gigabytes a second and makes one text of ``Out of memory``, ``OUT_OF_MEMORY`` and
``OutOfMemory``, in whatever colours; then a handful of words is looked for in what is left. Only a
block that has one of them is decoded, and only the patterns that go with that word are tried, each
where its key stands and nowhere else.
"""

from __future__ import annotations

import dataclasses
import re

from legroom.messages.patterns import PATTERNS, Pattern
from legroom.messages.patterns.details import DETAILS, Detail
from legroom.messages.patterns.pattern import line_start
from legroom.messages.reading.facts import Facts, clean
from legroom.messages.reading.reader import Block, plain_text

__all__ = ["Found", "Hint", "Scanner", "Sighting", "squeeze"]

# One of these is in every wording worth a look.
_NEEDLES = (
    b"memory", b"alloc", b"exhaust", b"tensorisnot", b"cudnn", b"cublas", b"algorithm", b"kill",
    b"exit", b"signal", b"segmentation", b"coredumped", b"fatalpython", b"crashed", b"died",
    b"spaceleft", b"quotaexceeded", b"largerthanmax", b"pagingfile", b"spaceonthedisk",
)  # fmt: skip
# Said when a program starts or when it ends, so they are looked for there only; also what job
# systems say of a program that has died, and what ends one that is none of the five frameworks'.
_EDGE_NEEDLES = (
    b"dlopen", b"dynamiclibrary", b"cuinit", b"cudadrivers", b"nocudagpus", b"compiledwithcuda",
    b"backtocpu", b"openfiles", b"abruptly", b"returncode", b"receivedanexception",
    b"buffersize", b"istoobig", b"dnnlibrary", b"restartingkernel", b"storefull", b"reaped",
    b"executablebatch", b"videomemory", b"exceedallowedmemory", b"exceedmemory", b"memorylimits",
    b"resourcememory", b"memorypressurefor", b"memlimit", b"containerkilled", b"heapoutofmemory",
    b"devicememory", b"cupycuda", b"memoryerroron", b"requestedbuffer", b"allowedbuffer",
    b"emoryallocationof", b"insufficientmemory", b"memobject", b"allocofsize", b"bufferof",
    b"hsastatus", b"badallocoutofmemory", b"deviceallocation", b"memalign", b"tommap",
    b"error",
)  # fmt: skip
_EDGE = 4 * 1024 * 1024
# Words that many logs are full of, and what is looked for next where they are found.
_GUARDS = {b"memory": (b"ofmemory", b"memory"), b"alloc": (b"toalloc", b"alloc")}

_LOWER = bytes(code + 32 if 65 <= code <= 90 else code for code in range(256))
_NO_LETTERS = bytes(code for code in range(256) if not (65 <= code <= 90 or 97 <= code <= 122))

# How many blocks after a failure details still belong to it; a dump that goes on renews it.
_WARM_BLOCKS = 2
# How often one wording is read in one block, word for word the same and with other figures. A log
# that repeats itself more often than this has told it by then.
_MOST_ALIKE, _MOST = 32, 512
_DUMP_DETAILS = frozenset(("bin", "free_chunk", "used_chunk", "chunks", "sum", "pool", "buffer"))

_WORKER = re.compile(
    r"\s{0,8}(?:"
    r"\[(?P<mpi>[0-9]{1,5}(?:,[0-9]{1,5})?)\]<std(?:err|out)>:|"  # mpirun --tag-output
    r"\[(?P<rank>rank ?[0-9]{1,5})\]:?|"  # torchrun
    r"\((?P<ray>[\w.:]{1,60}(?: [\w.:-]{1,40})? pid=[0-9]{1,10}[^)\n]{0,60})\)|"  # ray
    r"(?P<compose>[\w.-]{1,60}[-_][0-9]{1,5})\s{1,20}\| |"  # docker compose, kubectl --prefix
    r"(?P<srun>[0-9]{1,5}): "  # srun --label
    r")"
)
_HINTS = {
    "tensorflow": ("tensorflow", "[[{{node ", "[Op:", "local_xla"),
    "jax": ("jaxlib", "jax.", "jax/", "XlaRuntimeError", "external/xla", "org_tensorflow"),
    "torch": ("torch.", "torch/", "PyTorch", "pytorch"),
}
_OP_LOGS = ("OP_REQUIRES", "op_kernel.cc:", "executor.cc:", "endezvous is aborting")
# JAX is built from a copy of TensorFlow's sources, and names their paths.
_FOREIGN = ("org_", "org_tensorflow/")


@dataclasses.dataclass(frozen=True, slots=True)
class Sighting:
    """A wording that was found.

    Attributes:
        pattern: Which.
        facts: What it says.
        offset: Where, in characters from the start; for order and distance only.
        text: The line, cleaned for showing.
        worker: Which process of several said it, where lines are marked so.
        harmless: Whether the wording itself says that it is no failure.
    """

    pattern: Pattern
    facts: Facts
    offset: int
    text: str
    worker: str | None = None
    harmless: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Found:
    """A detail that was found, with what stands before it on its line."""

    name: str
    groups: dict[str, str]
    offset: int
    before: str
    worker: str | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Hint:
    """A sign of which framework is at work."""

    framework: str
    offset: int


def squeeze(data: bytes) -> bytes:
    """Letters only, all of them small."""
    return data.translate(_LOWER, _NO_LETTERS)


# Keys, each with the patterns that have it.
_Group = tuple[tuple[bytes, tuple[Pattern, ...]], ...]


def _grouped() -> tuple[dict[bytes, tuple[tuple[bytes, _Group], ...]], _Group]:
    """Patterns by the needle that goes with them, and those that go with none."""
    groups: dict[bytes, dict[bytes, dict[bytes, list[Pattern]]]] = {}
    loose: dict[bytes, list[Pattern]] = {}
    for pattern in PATTERNS:
        key = squeeze(pattern.key.encode())
        # A needle of the edges says more than one that is looked for everywhere; but the last.
        needles = (*_EDGE_NEEDLES[:-1], *_NEEDLES, _EDGE_NEEDLES[-1])
        needle = next((one for one in needles if one in key), None)
        # A key that is part of a word may lack the needle's first letter: "illed", "xit".
        if needle is None:
            needle = next((one for one in _NEEDLES if key and (one[1:] in key or key in one)), None)
        if needle is None:
            loose.setdefault(key, []).append(pattern)
            continue
        guard = next((one for one in _GUARDS.get(needle, ()) if one in key), b"")
        groups.setdefault(needle, {}).setdefault(guard, {}).setdefault(key, []).append(pattern)

    def frozen(group: dict[bytes, list[Pattern]]) -> _Group:
        return tuple((key, tuple(patterns)) for key, patterns in group.items())

    return {
        needle: tuple((guard, frozen(group)) for guard, group in guarded.items())
        for needle, guarded in groups.items()
    }, frozen(loose)


_GROUPS, _LOOSE = _grouped()


class Scanner:
    """Finds what matters in the blocks of one log, in the order of the log."""

    def __init__(self) -> None:
        self._warm = 0
        self._before: Block | None = None
        self._noted: set[str] = set()

    def feed(self, block: Block) -> list[Sighting | Found | Hint]:
        """Everything that one block says."""
        patterns = self._patterns(block)
        if not patterns and not self._warm and block.start:
            self._before = block
            return []
        text = plain_text(block.data)
        # What comes again in the next block is read there, where nothing of it is cut off.
        end = len(text) - len(plain_text(block.data[-block.repeated :])) if block.repeated else None
        sightings = self._sightings(patterns, block, text, end)
        found: list[Sighting | Found | Hint] = list(sightings)
        if any(one.pattern.kind != "note" for one in sightings):
            if not self._warm and self._before is not None:
                earlier = plain_text(self._before.data)
                found += _details(earlier, self._before.start, None)
                found += _hints(earlier, self._before.start)
            self._warm = _WARM_BLOCKS
        if self._warm:
            details = _details(text, block.start, end)
            if any(detail.name in _DUMP_DETAILS for detail in details):
                self._warm = _WARM_BLOCKS
            found += details
        if self._warm or not block.start:
            # A program's first lines often name what it imports; its last seldom do.
            found += _hints(text, block.start)
        self._before = None if self._warm else block
        self._warm = max(self._warm - 1, 0)
        found.sort(key=lambda one: one.offset)
        return found

    def _patterns(self, block: Block) -> list[Pattern]:
        """The patterns whose key may be in a block."""
        squeezed = squeeze(block.data)
        needles = [one for one in _NEEDLES if one in squeezed]
        if block.start < _EDGE or block.last:
            needles += [one for one in _EDGE_NEEDLES if one in squeezed]
        if not needles:
            return []
        groups = [
            group
            for needle in needles
            for guard, group in _GROUPS.get(needle, ())
            if guard in squeezed
        ]
        return [
            pattern
            for group in (*groups, _LOOSE)
            for key, patterns in group
            if key in squeezed
            for pattern in patterns
            if pattern.name not in self._noted
        ]

    def _sightings(
        self, patterns: list[Pattern], block: Block, text: str, end: int | None
    ) -> list[Sighting]:
        found: list[Sighting] = []
        for pattern in patterns:
            told: dict[str, int] = {}
            for position, match in pattern.matches(text, end):
                words = match.group()
                told[words] = told.get(words, 0) + 1
                if told[words] > _MOST_ALIKE or len(told) > _MOST:
                    continue
                groups = pattern.groups(text, position, match)
                if groups is None:
                    continue
                found.append(_sighting(pattern, groups, text, position, block.start))
                if pattern.kind == "note":
                    # TensorFlow says some of them at every step; once is enough.
                    self._noted.add(pattern.name)
                    break
        return found


def _sighting(
    pattern: Pattern, groups: dict[str, str], text: str, position: int, start: int
) -> Sighting:
    line = line_start(text, position)
    stop = text.find("\n", position)
    first = max(line, position - 120)
    excerpt = text[first : min(stop if stop >= 0 else len(text), position + 400)]
    if first > line:
        excerpt = "…" + excerpt
    harmless = "harmless" in groups
    if pattern.stage == 3 and any(mark in text[line:position] for mark in _OP_LOGS):
        # The op's own log line; the exception is still to come.
        pattern = dataclasses.replace(pattern, stage=2)
    return Sighting(
        pattern=pattern,
        facts=pattern.facts(groups),
        offset=start + position,
        text=clean(excerpt, 240),
        worker=_worker(text, line, position),
        harmless=harmless,
    )


def _details(text: str, start: int, end: int | None) -> list[Found]:
    found: list[Found] = []
    stop = len(text) if end is None else end
    for detail in DETAILS:
        first = text.find(detail.key, 0, stop)
        if first < 0:
            continue
        for number, match in enumerate(detail.regex.finditer(text, first)):
            if match.start() >= stop or number >= detail.most:
                break
            found.append(_found(detail, match, text, start))
    return found


def _found(detail: Detail, match: re.Match[str], text: str, start: int) -> Found:
    position = match.start()
    line = line_start(text, position)
    return Found(
        name=detail.name,
        groups={name: value for name, value in match.groupdict().items() if value is not None},
        offset=start + position,
        before=text[max(line, position - 60) : position],
        worker=_worker(text, line, position),
    )


def _hints(text: str, start: int) -> list[Hint]:
    """The first and the last sign of each framework: what lies between adds nothing."""
    found: list[Hint] = []
    for framework, tokens in _HINTS.items():
        for token in tokens:
            first, last = text.find(token), text.rfind(token)
            for _ in range(64):
                if first < 0 or not text.endswith(_FOREIGN, max(first - 15, 0), first):
                    break
                first = text.find(token, first + 1)
            for _ in range(64):
                if last < 0 or not text.endswith(_FOREIGN, max(last - 15, 0), last):
                    break
                last = text.rfind(token, 0, last)
            found += [Hint(framework, start + one) for one in {first, last} if one >= 0]
    return found


def _worker(text: str, line: int, position: int) -> str | None:
    match = _WORKER.match(text, line, min(position, line + 160))
    return match.group(match.lastgroup) if match is not None and match.lastgroup else None
