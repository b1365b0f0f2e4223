"""What ``legroom plan`` asks, answered in a process of its own.

The process imports the framework and makes the model, or runs the user's script up to its first
`fit`. So a script that dies takes nothing along, and what the framework prints does not mix with
the answer, which comes back in a file.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import subprocess
import sys
import tempfile
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from legroom.backends.base import current
from legroom.cli.terminal.stages import Stages
from legroom.cli.workers.children import framework
from legroom.core.errors import BadBudgetError, CannotFitError, LegroomError
from legroom.core.records import Record
from legroom.planning.strategies import Plan
from legroom.prediction.kept import FOLDER_VARIABLE, kept_answer

__all__ = ["ERRORS", "Question", "ask"]

ERRORS: dict[str, type[LegroomError]] = {
    "CannotFitError": CannotFitError,
    "BadBudgetError": BadBudgetError,
}


@dataclasses.dataclass(frozen=True)
class Question(Record):
    """What is asked: one of script, model or app, and under what conditions."""

    script: str | None = None
    arguments: tuple[str, ...] = ()
    model: str | None = None
    app: str | None = None
    batch_size: int | None = None
    budget_bytes: int | None = None
    optimizer: str = "adam"
    length: int | None = None
    allow: tuple[str, ...] = ("slices", "order", "recompute")
    exact: bool = False
    source: str = "auto"
    on_gpu: bool = False  # another machine's, by its name


def ask(question: Question, *, again: bool = False) -> tuple[Plan, datetime.datetime | None]:
    """Have a question answered, or take the answer of before.

    Args:
        question: What is asked.
        again: Have it answered even if it was before.

    Returns:
        The plan, and when it was made if it was not now.

    Raises:
        LegroomError: What the other process met, under the same class.
    """
    framework()
    return kept_answer(Plan, _key(question), lambda: _ask(question, again=again), again=again)


def _key(question: Question) -> dict[str, Any] | None:
    """What an answer depends on; None where that is a script, or the memory that is free now."""
    if question.script is not None or question.budget_bytes is None:
        return None
    return {**question.to_dict(), "model": question.model and _digest(Path(question.model))}


def _digest(path: Path) -> str:
    """What tells a file from others; read in pieces, for it may be larger than the memory."""
    seen = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            seen.update(piece)
    return seen.hexdigest()


def _ask(question: Question, *, again: bool) -> Plan:
    with tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True) as folder:
        answer = Path(folder) / "answer.json"
        worker = Path(__file__).with_name("plan_worker.py")
        environment = {**os.environ, "KERAS_BACKEND": current().name}
        environment.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        if again or question.script is None:
            environment[FOLDER_VARIABLE] = "off"  # what is kept of it is kept here
        if question.script is None:
            if current().name == "jax":
                # The program for a GPU is made on one; not by taking most of it at once.
                environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
            else:
                environment["CUDA_VISIBLE_DEVICES"] = "-1"  # a GPU is not needed to count
        with _progress(question):
            done = subprocess.run(
                [sys.executable, str(worker), question.to_json(), str(answer), *question.arguments],
                env=environment,
                # The answer is on stdout: what the script prints goes to stderr.
                stdout=sys.stderr.fileno(),
                stderr=None if question.script is not None else subprocess.PIPE,
            )
        if not answer.exists():
            raise LegroomError(_no_answer(question, done))
        said = json.loads(answer.read_text())
    if "error" in said:
        kind = ERRORS.get(said["error"], LegroomError)
        raise kind(said["message"])
    return Plan.from_dict(said)


def _progress(question: Question) -> AbstractContextManager[None]:
    """A line that shows for how long it has been worked; a script has its own output there."""
    if question.script is not None:
        return contextlib.nullcontext()
    return Stages(to_stderr=True).waiting(f"estimating {question.app or question.model}")


def _no_answer(question: Question, done: subprocess.CompletedProcess[bytes]) -> str:
    if question.script is not None:
        how = f"exit code {done.returncode}" if done.returncode >= 0 else (
            f"signal {-done.returncode}")  # fmt: skip
        if done.returncode != 0:
            return (
                f"{question.script} failed ({how}) before it called model.fit, so there is no "
                "training to plan for. Its own error is above."
            )
        return (
            f"{question.script} ended ({how}) without calling model.fit, so there is no training "
            "to plan for. A loop written by hand can't be planned yet: ask about its model with "
            "legroom.plan(model, batch_size, data=…), or, in plain PyTorch, about its step with "
            "legroom.estimate(step, batch_size, data=(x, y))."
        )
    lines = (done.stderr or b"").decode(errors="replace").strip().splitlines()
    return f"The model could not be looked at: {lines[-1] if lines else 'no reason was given'}"
