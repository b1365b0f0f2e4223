from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.core.errors import BadBudgetError
from legroom.core.units import format_bytes, format_factor, format_seconds, parse_size


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("8GiB", 8 * 2**30),
        ("8GB", 8 * 10**9),
        ("8g", 8 * 2**30),
        (" 512 MiB ", 512 * 2**20),
        ("1.5gb", 1_500_000_000),
        ("100kB", 100_000),
        ("2TiB", 2 * 2**40),
        ("7b", 7),
        ("1048576", 2**20),
        ("80%", 800),
        ("100%", 1000),
        ("0.5%", 5),
        (4096, 4096),
        (1e9, 10**9),
    ],
)
def test_sizes_people_write(text: str | int | float, count: int) -> None:
    assert parse_size(text, whole=1000) == count


@pytest.mark.parametrize(
    "text",
    ["", "GiB", "8 apples", "-1GiB", "8,5GB", "1e9", "0", "0GiB", "0.0001b", "101%", "% 80", "8G8",
     "nan", "inf", "٨GiB", "99999999TiB", 0, -5, math.nan, math.inf, True, None, b"8GiB"],
)  # fmt: skip
def test_sizes_that_are_none(text: object) -> None:
    with pytest.raises(BadBudgetError, match="Received: ") as caught:
        parse_size(text, whole=1000)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_a_percentage_of_nothing() -> None:
    with pytest.raises(BadBudgetError, match="needs a device whose memory is known"):
        parse_size("80%")


@given(st.integers(1, 2**50))
def test_a_number_of_bytes_is_itself(count: int) -> None:
    assert parse_size(count) == parse_size(str(count)) == parse_size(f"{count} B") == count


@given(st.integers(1, 10**15))
def test_written_and_read_again(count: int) -> None:
    """Three digits are kept, so the way back is within half of the third one."""
    assert parse_size(format_bytes(count)) == pytest.approx(count, rel=0.00501, abs=1)


@given(st.text())
def test_any_text_is_a_size_or_a_bad_budget(text: str) -> None:
    with contextlib.suppress(BadBudgetError):
        assert parse_size(text, whole=10**9) >= 1


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.6, "1.00 kB"),
        (848e6, "848 MB"),
        (999_499_999, "999 MB"),
        (999_600_000, "1.00 GB"),
        (1.214e9, "1.21 GB"),
        (12.34e9, "12.3 GB"),
        (3e15, "3000 TB"),
        (-2e6, "-2.00 MB"),
    ],
)
def test_bytes_for_people(count: float, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0.0 s"), (0.84, "0.8 s"), (42.4, "42 s"), (59.9, "1 min 0 s"), (185, "3 min 5 s"),
     (7800, "2 h 10 min")],
)  # fmt: skip
def test_durations_for_people(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("factor", "text"),
    [(1.0, "as fast"), (1.004, "as fast"), (0.9, "as fast"), (1.081, "about 8 % slower"),
     (2.5, "about 150 % slower")],
)  # fmt: skip
def test_factors(factor: float, text: str) -> None:
    assert format_factor(factor) == text


def test_sizes_are_written_as_the_user_writes_them() -> None:
    assert format_bytes(2**31) == "2.15 GB"
    parse_size("1GiB")
    assert format_bytes(2**31) == "2.00 GiB"
    assert format_bytes(1.5 * 2**20) == "1.50 MiB"
    parse_size("50%", whole=100)
    parse_size(100)
    assert format_bytes(2**10) == "1.00 KiB"
    parse_size("1 GB")
    assert format_bytes(2**31) == "2.15 GB"
