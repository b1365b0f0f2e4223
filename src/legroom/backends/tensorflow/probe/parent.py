"""A probe: a child process that runs a traced step at two small sizes and tells what it took.

The child gets the graph and shapes, not the model: a model with a lambda in it can't be sent, and
nothing that the child does can touch what this process has.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from legroom.backends.tensorflow.graph.stepgraph import StepGraph
from legroom.core.errors import LegroomError
from legroom.core.process.lifeline import ends_with_this

__all__ = ["SIZES", "ProbeChild", "ProbeFailed"]

# Prime, because a power of two may be some layer's width and would be taken for the batch.
SIZES = (3, 2)
_TIMEOUT = 900.0


class ProbeFailed(LegroomError):
    """The child could not run the step; the message has its last words."""


class ProbeChild:
    """A child process that has TensorFlow ready by the time the step is traced.

    Args:
        threads: Its inter-op threads; 0 for TensorFlow's default.
        limit: A cap on its memory, in bytes.
        card: The GPU that it uses; None for the CPU. Not yet verified on a GPU.
    """

    def __init__(
        self, *, threads: int = 0, limit: int | None = None, card: int | None = None
    ) -> None:
        self._threads = threads
        self._limit = limit
        self._card = card

    def __enter__(self) -> ProbeChild:
        """Start it; it imports TensorFlow while this process goes on."""
        self._folder = tempfile.TemporaryDirectory(prefix="legroom-", ignore_cleanup_errors=True)
        environment = {
            key: value
            for key, value in os.environ.items()
            if not key.startswith(("TF_", "XLA_", "LEGROOM_"))
        }
        if self._limit is not None and self._card is None:
            environment["TF_CPU_BFC_MEM_LIMIT_IN_MB"] = str(max(1, self._limit // 2**20))
        command = [sys.executable, str(Path(__file__).with_name("child.py"))]
        self._child = subprocess.Popen(
            [*command, self._folder.name, str(self._threads), *self._card_arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=(Path(self._folder.name) / "stderr").open("wb"),
            env=environment,
            start_new_session=True,
            preexec_fn=ends_with_this(),
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End it, if it has not ended, and remove its files."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()
        if self._child.stdin is not None:
            with contextlib.suppress(OSError):
                self._child.stdin.close()
        self._folder.cleanup()

    def _card_arguments(self) -> list[str]:
        if self._card is None:
            return []
        return [str(self._card), str(max(1, (self._limit or 0) // 2**20))]

    def record(self, step: StepGraph) -> dict[str, Any]:
        """Have a step run, and get the record of its allocations.

        Raises:
            ProbeFailed: If the child could not run it.
        """
        return self._run(step, SIZES, "record")

    def fits(self, step: StepGraph, samples: int) -> bool:
        """Have a step run a few times at one size, and see whether memory runs out.

        Raises:
            ProbeFailed: If the child could not run it for another reason.
        """
        return bool(self._run(step, (samples,), "try")["fits"])

    def compiled(self, step: StepGraph, samples: int) -> dict[str, int]:
        """Have a step compiled with XLA for one size: its `total` and `temp` bytes.

        Raises:
            ProbeFailed: If the child could not compile it.
        """
        return self._run(step, (samples,), "compile")

    def _run(self, step: StepGraph, sizes: Sequence[int], task: str) -> dict[str, Any]:
        folder = Path(self._folder.name)
        _write_job(step, folder, sizes, task)
        assert self._child.stdin is not None
        try:
            self._child.stdin.write(b"go\n")
            self._child.stdin.flush()
            code = self._child.wait(_TIMEOUT)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ProbeFailed(f"The probe did not answer: {error}") from error
        if code != 0:
            lines = (folder / "stderr").read_text(errors="replace").strip().splitlines()
            raise ProbeFailed(
                f"The probe ended with code {code}: {lines[-1][:300] if lines else 'no words'}"
            )
        record: dict[str, Any] = json.loads((folder / "record.json").read_text())
        return record


def _write_job(step: StepGraph, folder: Path, sizes: Sequence[int], task: str) -> None:
    library = step.graph.as_graph_def().library
    library.function.append(step.function.function_def)
    for function in library.function:
        for node in function.node_def:
            node.device = ""  # the child has one device only
    (folder / "library.pb").write_bytes(library.SerializeToString())
    constants = {
        f"c{number}": held.value for number, held in enumerate(step.held) if held.value is not None
    }
    np.savez(folder / "constants.npz", **constants)
    unknown = [held.path for held in step.held if held.dtype == "resource"]
    if unknown:
        raise ProbeFailed(f"The step uses a table or another resource: {unknown[0] or 'unnamed'}")
    job = {
        "sizes": list(sizes),
        "task": task,
        "inputs": [[name, list(shape), dtype] for name, shape, dtype in step.inputs],
        "function": step.function.function_def.signature.name,
        "arguments": [tensor.op.name for tensor in step.graph.inputs],
        "outputs": [tensor.dtype.name for tensor in step.graph.outputs],
        "classes": list(step.classes),
        "held": [
            {
                "name": held.name,
                "role": held.role,
                "shape": list(held.shape),
                "dtype": held.dtype,
                "constant": held.path == "constant",
                "value": held.value is not None,
                "born": held.born,
            }
            for held in step.held
        ],
    }
    (folder / "job.json").write_text(json.dumps(job))
