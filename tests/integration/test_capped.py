"""What users see of the guard under a real cap: it survives, says what it does, or says why not."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

CHILD = Path(__file__).with_name("capped_child.py")
# In two children side by side: most of the time TensorFlow waits before it says it ran out.
CHECKS = (
    "too_large_to_compare,survives,one_sample_is_too_much,batch_norm,batch_norm_exact,"
    "sums_many_terms",
    "deep_exact,grows_again,coupling_loss,user_errors,survives_often,many_tokens,recomputed",
)


def run(*arguments: str, timeout: float) -> tuple[dict[str, dict[str, Any]], str]:
    """Run checks in a capped child."""
    done = subprocess.run(
        [sys.executable, CHILD, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        timeout=timeout,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["check"]: line for line in lines}, done.stderr


@pytest.fixture(scope="module")
def seen() -> dict[str, dict[str, Any]]:
    """All checks, once."""
    with ThreadPoolExecutor(len(CHECKS)) as pool:
        children = list(pool.map(functools.partial(run, timeout=600), CHECKS))
    results = {name: result for results, _ in children for name, result in results.items()}
    results["stderr"] = {"text": "".join(errors for _, errors in children)}
    return results


def test_a_large_batch_finishes(seen):
    result = seen["survives"]
    assert result["lost"] == 0
    assert result["seen"] == 320
    assert result["peak"] <= result["budget"] == 300 * 2**20
    assert result["predicted"] == [160, 10]
    assert result["json"] == "RunReport"


def test_a_comparison_that_would_run_out_is_left_out(seen):
    # It would cost ten seconds, and what TensorFlow's tape holds when it fails is lost.
    result = seen["too_large_to_compare"]
    assert result["ooms"] == 0
    assert result["size"] < 32
    assert any("too much for a comparison" in note for note in result["notes"])


def test_slices_help_where_most_of_a_step_is_a_sparse_gradient(seen):
    result = seen["many_tokens"]
    assert result["peak"] < result["rows"] / 2


def test_recomputed_blocks_need_less(seen):
    result = seen["recomputed"]
    assert result["recomputed"] < result["plain"] / 2


def test_a_sum_that_ran_out_can_be_run_again(seen):
    first, ran_out, again = seen["sums_many_terms"]["seen"]
    assert ran_out is None
    assert first == again


def test_cannot_fit_says_what_one_sample_needs(seen):
    result = seen["one_sample_is_too_much"]
    text = result["text"]
    assert text is not None
    order = [
        "One sample needs about",
        "the budget is 315 MB",
        "The largest tensors",
        "What to change",
    ]
    places = [text.index(words) for words in order]
    assert places == sorted(places)
    assert "first_conv" in text
    assert "first_conv_1" not in text
    assert result["needed"] > result["budget"]
    assert result["untouched"]
    assert result["iterations"] == 0


def test_batch_norm_is_named_once(seen):
    notes = [note for note in seen["batch_norm"]["notes"] if "the_norm" in note]
    assert len(notes) == 1
    assert "exact=True" in notes[0]
    assert min(seen["batch_norm"]["sizes"]) < 80  # the order of ops decides whether 80 fit later


def test_exact_does_not_slice_batch_norm(seen):
    result = seen["batch_norm_exact"]
    assert "the_norm mixes the samples of a batch" in result["text"]
    assert result["untouched"]


def test_exact_recomputes_where_it_may_not_slice(seen):
    result = seen["deep_exact"]
    assert result["slice_size"] == 160
    assert any("recomputed" in text for text in result["plans"])


def test_slices_grow_when_memory_comes_back(seen):
    sizes = seen["grows_again"]["sizes"]
    assert sizes[0] < 48
    assert sizes[-1] == 48


def test_a_loss_that_couples_samples_is_named(seen):
    assert any("my_contrastive" in note for note in seen["coupling_loss"]["notes"])


def test_errors_are_the_users_own(seen):
    callback, lengths, uncompiled, slices, budget, model, late = seen["user_errors"]["seen"]
    assert callback == ["Mine", "from the callback"]
    assert lengths[0] == "ValueError"
    assert "same number of samples" in lengths[1]
    assert uncompiled[0] == "ValueError"
    assert "compile" in uncompiled[1]
    assert slices == [
        "LegroomError",
        "slice_size must be a whole number of samples, 1 or more. Received: slice_size=0",
    ]
    assert budget[0] == "BadBudgetError"
    assert model[0] == "UnsupportedModelError"
    assert late[0] == "BadBudgetError"
    assert "legroom run --memory 100MiB" in late[1]


def steady(levels: list[int]) -> bool:
    """Whether memory stays where it was after the first turn; a few small buffers do not count."""
    return max(levels[1:]) <= levels[0] * 1.05 + 2**16


def test_survived_failures_leave_no_growth(seen):
    assert seen["survives_often"]["ooms"] >= 2
    assert steady(seen["survives_often"]["levels"])


@pytest.mark.long
def test_a_hundred_survived_failures_leave_no_growth():
    results, _ = run("survives_often", "100", timeout=7200)
    assert steady(results["survives_often"]["levels"])
    assert results["survives_often"]["ooms"] >= 90
