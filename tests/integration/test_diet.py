"""What `legroom.check(model)` proposes, and that its predictions are near what training takes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "diet.py"
# What each model is proposed, at least.
PROPOSED = {
    "embedded": {"factorized_embedding", "sgd"},
    "convolutional": {"separable", "sgd", "smaller_input"},
    "deep": {"eight_bits", "bfloat16", "smaller_input"},
}


@pytest.mark.long
@pytest.mark.parametrize("model", PROPOSED)
def test_predicted_peaks_are_within_a_tenth(model: str) -> None:
    done = subprocess.run(
        [sys.executable, BENCHMARK, model], capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["rows"]
    assert {row["change"] for row in rows} >= {"none", *PROPOSED[model]}
    for row in rows:
        assert row["ratio"] == pytest.approx(1, abs=0.1), row
