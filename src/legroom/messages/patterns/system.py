"""What the C++ runtime, the Java runtime, Windows and the Linux kernel say."""

from __future__ import annotations

import re

from legroom.messages.patterns.pattern import Pattern
from legroom.messages.sizes import SIZE

__all__ = ["PATTERNS"]

PATTERNS = (
    Pattern(
        name="java-out-of-memory",
        key="java.lang.OutOfMemoryError",
        regex=re.compile(r"java\.lang\.OutOfMemoryError"),
        finding="python-memory-error",
        framework="system",
        where="host",
    ),
    Pattern(
        name="std-bad-alloc",
        key="std::bad_alloc",
        regex=re.compile(r"std::bad_alloc"),
        finding="python-memory-error",
        fallback="system",
        where="host",
    ),
    Pattern(
        name="cannot-allocate-memory",
        key="annot allocate memory",
        regex=re.compile(r"annot allocate memory"),
        finding="python-memory-error",
        fallback="system",
        where="host",
        weak=True,
    ),
    Pattern(
        name="windows-paging-file",
        key="paging file is too small",
        regex=re.compile(r"paging file is too small"),
        finding="python-memory-error",
        fallback="system",
        where="host",
    ),
    Pattern(
        # The kernel's own line. Its kB are 1024 bytes.
        name="kernel-killed-process",
        key="illed process ",
        regex=re.compile(
            r"illed process [0-9]{1,10},? (?:\((?P<process>[^)\n]{1,60})\))?,?"
            r"(?: UID [0-9]{1,10},)?"
        ),
        after=(re.compile(rf"^[^\n]{{0,200}}?anon-rss: ?(?P<in_use>{SIZE})"),),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        binary=True,
    ),
    Pattern(
        name="kernel-oom-kill",
        key="oom-kill",
        regex=re.compile(r"oom-kill(?:er|:constraint)"),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        weak=True,
    ),
    Pattern(
        name="kernel-out-of-memory",
        key="ut of memory: Kill",
        regex=re.compile(r"ut of memory: Kill(?:ed)? process"),
        finding="killed",
        kind="death",
        framework="system",
        where="host",
        weak=True,
    ),
)
