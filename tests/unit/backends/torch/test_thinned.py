"""Of large gradients some rows are compared, the same ones each time."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from legroom.backends.torch.slices.thinned import Thinned  # noqa: E402


@pytest.mark.parametrize("shape", [(3,), (40, 50), (), (2, 3, 4)])
def test_small_ones_are_taken_as_they_are(shape):
    gradient = torch.rand(shape)
    np.testing.assert_array_equal(Thinned()("w", gradient), gradient.numpy())


def test_none():
    assert Thinned()("w", None) is None


@pytest.mark.parametrize("shape", [(3000, 500), (4, 400_000), (300_000,), (64, 64, 7, 7)])
def test_large_ones_are_cut_and_add_up_as_before(shape):
    thin = Thinned()
    one, other = torch.rand(shape), torch.rand(shape)
    whole = thin("w", one + other)
    assert whole.size <= 2**18
    np.testing.assert_allclose(thin("w", one) + thin("w", other), whole, rtol=1e-5)


def test_the_few_rows_that_an_embedding_uses_are_among_them():
    thin = Thinned()
    gradient = torch.zeros(100_000, 16)
    gradient[[17, 4711, 99_998]] = torch.rand(3, 16) + 0.5
    made = thin("table", gradient)
    assert (made != 0).any(axis=1).sum() == 3


def test_sparse_ones():
    thin = Thinned()
    rows = torch.tensor([[17, 4711, 17]])
    gradient = torch.sparse_coo_tensor(rows, torch.ones(3, 16), (100_000, 16))
    made = thin("table", gradient)
    np.testing.assert_array_equal(sorted(made.sum(axis=1)), [16, 32])
    part = torch.sparse_coo_tensor(torch.tensor([[4711, 5]]), torch.ones(2, 16), (100_000, 16))
    np.testing.assert_array_equal(sorted(thin("table", part).sum(axis=1)), [0, 16])
