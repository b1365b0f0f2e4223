"""On JAX, too, a step that runs out of memory has done nothing, wherever it runs out.

And neither has one that Ctrl-C ends. Keras gives its weights away to each step there: without
legroom both lose them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.on_jax("has real out-of-memory errors by a limit to the address space")

FOLDER = Path(__file__).parent


def seen_by(child: str, *arguments: str) -> dict[str, dict]:
    """What a child process saw, by the kind of step."""
    done = subprocess.run(
        [sys.executable, str(FOLDER / child), *arguments], capture_output=True, text=True,
        env={**os.environ, "KERAS_BACKEND": "jax", "MALLOC_ARENA_MAX": "1"},  # see cli.selftest
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["kind"]: line for line in lines}


def test_wherever_memory_runs_out() -> None:
    kinds = ("whole", "sliced", "late", "evaluate", "eager")
    seen = seen_by("jax_ballast_child.py", "7", *kinds, "plain")
    for kind in kinds:
        assert seen[kind]["torn"] == [], seen[kind]
        assert seen[kind]["lost"] == [], seen[kind]
        assert seen[kind]["undone"] >= 3, seen[kind]
        assert seen[kind]["done"] >= 1, seen[kind]
        assert seen[kind]["trains_on"], seen[kind]
    assert seen["late"]["late"] >= 1
    assert seen["plain"]["lost"], "plain Keras has lost nothing: there was no failure to survive"


def test_whenever_ctrl_c_is_pressed() -> None:
    kinds = ("compiling", "first", "last", "reading", "evaluate", "predict")
    seen = seen_by("jax_interrupt_child.py", *kinds, "plain")
    for kind in kinds:
        assert seen[kind]["torn"] == [], seen[kind]
        assert seen[kind]["lost"] == 0, seen[kind]
        assert seen[kind]["trains_on"], seen[kind]
    # Keras itself drops what comes while it reads the logs of a batch.
    assert sum(seen[kind]["interrupted"] for kind in kinds) >= 20, seen
    assert seen["plain"]["lost"], "plain Keras has lost nothing: Ctrl-C came at harmless moments"


def test_wherever_a_step_by_hand_runs_out() -> None:
    kinds = ("kept", "donated", "sliced")
    seen = seen_by("jax_loop_child.py", "8", *kinds, "plain")
    for kind in kinds:
        assert seen[kind]["torn"] == [], seen[kind]
        assert seen[kind]["lost"] == [], seen[kind]
        assert seen[kind]["undone"] >= 2, seen[kind]
        assert seen[kind]["done"] >= 2, seen[kind]
    assert seen["plain"]["lost"], "the plain step has lost nothing: there was no failure to survive"
