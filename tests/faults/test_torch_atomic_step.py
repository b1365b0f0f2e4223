"""On PyTorch, too, a step that runs out of memory has done nothing, wherever it runs out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_torch("has real out-of-memory errors by a limit to the address space")

CHILD = Path(__file__).with_name("torch_ballast_child.py")


@pytest.mark.parametrize("kind", ["sgd", "adam", "foreach", "keras", "in_turn"])
def test_wherever_memory_runs_out(kind):
    done = subprocess.run(
        [sys.executable, str(CHILD), kind, "200"], capture_output=True, text=True,
        env={**os.environ, "KERAS_BACKEND": "torch", "MALLOC_ARENA_MAX": "1"},  # see cli.selftest
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["torn"] == 0, seen
    assert seen["undone"] >= 5, seen
    assert seen["done"] >= 5, seen
