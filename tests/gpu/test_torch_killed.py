"""Trainings on a card, killed at random moments, come to the same weights, bit for bit.

KERAS_BACKEND=torch python -m pytest tests/gpu
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ..faults.killing import killed_and_finished

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can use"),
]
ON_CARD = {"KEPT_DEVICE": "cuda", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}


def test_a_plain_loop(tmp_path: Path) -> None:
    kills = [(signal.SIGKILL, 0), (signal.SIGKILL, 1)]
    killed_and_finished(tmp_path, ["plain:"], kills, seed=1, **ON_CARD)


def test_a_keras_model(tmp_path: Path) -> None:
    killed_and_finished(tmp_path, ["arrays"], [(signal.SIGKILL, 0)], seed=2, **ON_CARD)
