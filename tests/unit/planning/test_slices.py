"""Which slices a plan takes. The prediction is a straight line here."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from legroom.planning import slices
from legroom.planning.slices import Slices


class Line:
    """So many bytes a sample; twice as much with the error bar, half of it one op at a time."""

    model, asked = None, {}

    def __init__(self, *args, extra=0, **kwargs):
        self.extra = extra

    def peak(self, size):
        return 20 * size

    def middle_peak(self, size):
        return 10 * size

    def least_pool(self, size):
        return 5 * size

    def traced_peak(self, size):
        return 10 * size + self.extra

    def seen_by_probe(self, size):
        return 0


@pytest.fixture
def made(monkeypatch):
    def make(samples=64, extra=0, weights=7, probe=0, given=0):
        plain = Line()
        plain.seen_by_probe = lambda size: probe
        monkeypatch.setattr(slices, "Prediction", lambda *args, **kwargs: Line(extra=extra))
        breakdown = {"weights": weights, "input": given * samples}
        whole = SimpleNamespace(breakdown=breakdown, source="traced")
        return Slices(plain, whole, samples, exact=True)

    return make


def test_the_largest_that_fit_are_made_even(made):
    strategy = made().strategy(20 * 50)
    assert (strategy.name, strategy.slice_size, strategy.fits) == ("2 slices of 32", 32, True)
    assert strategy.peak_bytes == 20 * 32


def test_where_none_fits_one_sample_is_shown(made):
    strategy = made().strategy(19)
    assert (strategy.slice_size, strategy.peak_bytes, strategy.fits) == (1, 20, False)


def test_the_rest_of_the_batch_and_what_only_a_probe_saw_count(made):
    assert made(given=3).peak(4) == 20 * 4 + 3 * 60
    assert made(probe=5).peak(4) == 20 * 4 + 5


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        (15, 1),  # by the middle figure
        (80, 4),  # half of what should fit: the rest is for doubt
        (9, 1),  # only if ops wait for each other
        (4.5, 1),  # and if all goes well
        (3, None),
    ],
)
def test_what_may_fit_is_not_refused(made, budget, size):
    strategy = made().perhaps(budget)
    assert (strategy and strategy.slice_size) == size
    assert strategy is None or (strategy.fits and not strategy.sure)


@pytest.mark.parametrize(("extra", "held"), [(4, 4), (-3, 0), (100, 7)])
def test_gradients_that_are_held_back_are_at_most_as_large_as_the_weights(made, extra, held):
    assert made(extra=extra).held_back() == held
