"""What `legroom watch` says of a process whose memory grew."""

from __future__ import annotations

from legroom.cli.terminal.process_view import growth_words

MB = 1e6


def test_memory_that_grew_all_the_time_is_said_with_its_rate() -> None:
    said = growth_words([500 * MB + 2 * MB * number for number in range(100)], 100.0)
    assert said is not None
    assert "by 120 MB a minute" in said
    assert "legroom check" in said


def test_a_start_a_plateau_and_a_short_run_are_no_growth() -> None:
    assert growth_words([2 * MB * number for number in range(100)], 50.0) is None
    assert growth_words([500 * MB] * 100, 100.0) is None
    assert growth_words([min(number, 20) * 50 * MB for number in range(100)], 100.0) is None
    assert growth_words([], 100.0) is None
