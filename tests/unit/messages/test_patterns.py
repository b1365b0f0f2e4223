"""What every pattern must keep to, so that reading stays linear and complete."""

from __future__ import annotations

import re

import pytest

from legroom.messages.meanings import MEANINGS
from legroom.messages.patterns import PATTERNS, Pattern
from legroom.messages.patterns.details import DETAILS, Detail
from legroom.messages.reading.scan import squeeze
from legroom.report.pages import page_text

FRAMEWORKS = {None, "tensorflow", "jax", "torch", "numpy", "system"}
UNBOUNDED = re.compile(r"(?<!\\)(?:[*+]|\{\d+,\})(?![\w%])")


def without_sets(expression: str) -> str:
    """An expression without its sets of characters, where a star is a star."""
    return re.sub(r"\[(?:\\.|[^\]\\])*\]|\\.", "x", expression)


def expressions(pattern: Pattern) -> list[str]:
    others = (pattern.before, pattern.only_after, *pattern.after)
    return [pattern.regex.pattern, *(one.pattern for one in others if one is not None)]


def test_names_are_unique() -> None:
    assert len({pattern.name for pattern in PATTERNS}) == len(PATTERNS)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.name)
def test_pattern_is_bounded(pattern: Pattern) -> None:
    """No repetition without an end: hostile text must not cost more than other text."""
    for expression in expressions(pattern):
        assert not UNBOUNDED.search(without_sets(expression)), expression


@pytest.mark.parametrize("detail", DETAILS, ids=lambda one: f"{one.name}-{one.key.strip()}")
def test_detail_is_bounded(detail: Detail) -> None:
    assert not UNBOUNDED.search(without_sets(detail.regex.pattern))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.name)
def test_pattern_begins_with_its_key(pattern: Pattern) -> None:
    """That is what lets C code find it."""
    if not pattern.from_line:
        literal = re.sub(r"\\(.)", r"\1", pattern.regex.pattern)
        shared = pattern.key if literal.startswith(pattern.key) else pattern.key.rstrip()
        assert literal.startswith(shared) or pattern.key in ("eturn", "xit", "KILL")


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda one: one.name)
def test_pattern_says_what_it_may(pattern: Pattern) -> None:
    assert pattern.framework in FRAMEWORKS
    assert pattern.fallback in FRAMEWORKS
    assert pattern.where in (None, "device", "host", "disk")
    assert len(squeeze(pattern.key.encode())) >= 3
    if pattern.kind == "death":
        assert pattern.finding in MEANINGS


@pytest.mark.parametrize(
    "finding", sorted({pattern.finding for pattern in PATTERNS} | {"allocator-not-a-failure"})
)
def test_finding_has_a_page(finding: str) -> None:
    assert page_text(finding)
