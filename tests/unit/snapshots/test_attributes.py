from __future__ import annotations

import numpy as np

from legroom.snapshots.attributes import capture, restore


class Inner:
    def __init__(self) -> None:
        self.best = 0.5


class Callback:
    def __init__(self) -> None:
        self.wait = 0
        self.best = np.float32(np.inf)
        self.weights = [np.zeros(3)]
        self.log: list[float] = []
        self.file = open
        self.inner = Inner()
        self.model = Inner()
        self.random = np.random.default_rng(0)


def test_what_an_object_remembers_comes_back() -> None:
    one = Callback()
    one.wait, one.best, one.weights[0][1] = 3, np.float32(0.1), 7
    one.log.extend([1.0, 2.0])
    one.inner.best = 0.25
    one.model.best = 99
    one.random.random(5)
    arrays: list = []
    taken = capture(one, arrays)
    expected = one.random.random()
    other = Callback()
    held = other.log
    restore(other, taken, arrays)
    assert (other.wait, other.best, other.inner.best) == (3, np.float32(0.1), 0.25)
    assert type(other.best) is np.float32
    assert other.weights[0].tolist() == [0, 7, 0]
    assert held == [1.0, 2.0]
    assert other.model.best == 0.5  # the model is no part of a callback
    assert other.random.random() == expected


def test_large_data_is_passed_over() -> None:
    one = Callback()
    one.weights = [np.zeros(1000)]
    arrays: list = []
    taken = capture(one, arrays, largest=1000)
    assert "weights" not in taken
    assert all(array.nbytes <= 2500 for array in arrays)
