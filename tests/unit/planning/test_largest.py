"""The search for the largest batch, with a pool that is known."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from legroom.machine.budget import DeviceReading
from legroom.planning.largest import Tries, refuse_card, round_down, search


def run(guess, largest, *, multiple=1, power=False, bound=10**6, **tries):
    tried = []

    def fits(size):
        tried.append(size)
        return size <= largest

    def allowed(size):
        return round_down(min(size, bound), multiple, power)

    smallest = 1 if power else multiple
    begin = allowed(guess) or smallest
    return search(begin, smallest, fits, allowed, Tries(**tries)), tried


@given(st.integers(1, 5000), st.integers(0, 5000), st.sampled_from([1, 8]))
def test_what_is_returned_was_tried_and_fits(guess, largest, multiple):
    found, tried = run(guess, largest, multiple=multiple)
    if found is None:
        assert largest < multiple
    else:
        assert found in tried
        assert found <= largest
        assert found % multiple == 0


@given(st.integers(8, 5000), st.floats(0.8, 1.2))
def test_from_a_fair_guess_twice_the_result_fails(largest, off):
    found, tried = run(max(1, int(largest * off)), largest)
    assert found is not None
    assert 2 * found > largest
    assert len(tried) <= 4


@given(st.integers(32, 5000), st.floats(0.95, 1.05))
def test_where_tries_are_quick_the_result_is_closer(largest, off):
    found, tried = run(int(largest * off), largest, between=2)
    assert found in tried
    assert 0.95 * largest - 1 <= found <= largest
    assert len(tried) <= 6


@given(st.integers(32, 5000), st.floats(0.8, 1.2))
def test_on_a_card_it_is_found_to_the_half_percent(largest, off):
    card = {"up": 1.05, "most_up": 8, "down": 0.95, "between": 8}
    found, tried = run(int(largest * off), largest, **card)
    assert 0.995 * largest - 1 <= found <= largest
    assert len([size for size in tried if size > largest]) <= 7
    assert len(tried) <= 13


def test_between_neighbours_nothing_is_tried():
    assert run(100, 100, bound=101, between=3) == (100, [100, 101])


def test_powers_of_two():
    assert run(100, 130, power=True) == (128, [64, 128, 256])
    assert run(100, 40, power=True)[0] == 32


def test_the_data_bounds_it():
    assert run(64, 10**6, bound=50)[0] == 50


MIB = 2**20


def card(free: int | None, *, grows: bool) -> DeviceReading:
    total = None if free is None else 15_360 * MIB
    free = None if free is None else free * MIB
    return DeviceReading("GPU:0", 13_757 * MIB, grows=grows, card_bytes=total, free_bytes=free)


def test_a_card_that_tensorflow_has_reserved_is_refused_with_what_to_do():
    reason = refuse_card(card(1_050, grows=False), 13_700 * MIB)
    assert reason is not None
    assert "set_memory_growth" in reason
    assert "only 629 MB are left" in reason
    assert "legroom.plan" in reason


def test_a_card_that_is_free_beside_this_process_is_tried():
    assert refuse_card(card(14_600, grows=True), 13_700 * MIB) is None
    assert refuse_card(card(1_050, grows=False), 500 * MIB) is None


def test_a_card_that_the_driver_does_not_tell_about_is_refused():
    reason = refuse_card(card(None, grows=True), 13_700 * MIB)
    assert reason is not None
    assert "does not tell" in reason
