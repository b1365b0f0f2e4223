"""Several commands at once, each with a deadline: most of an out-of-memory error is waiting."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from .conftest import LEGROOM

CAP = 2**30
CAP_FOR_PLAIN_PYTHON = {
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_CPU_BFC_MEM_LIMIT_IN_MB": str(CAP // 2**20),
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def busy() -> float:
    """How many times as long a command takes here now as on a machine of its own."""
    return max(1.0, max(os.getloadavg()) / (os.cpu_count() or 1))


@dataclasses.dataclass(frozen=True)
class Done:
    """What a command did."""

    code: int
    output: str
    errors: str


class Running:
    """A command that runs, with its output in files so that nothing waits for a reader."""

    def __init__(
        self, folder: Path, command: Sequence[str], env: Mapping[str, str], stdin: str = ""
    ) -> None:
        folder.mkdir(parents=True)
        unwanted = ("LEGROOM_MEMORY", "TF_USE_LEGACY_KERAS", "COLUMNS", *CAP_FOR_PLAIN_PYTHON)
        kept = {key: value for key, value in os.environ.items() if key not in unwanted}
        (folder / "in").write_text(stdin)
        self._outputs = folder / "out", folder / "err"
        with (
            (folder / "in").open() as read,
            self._outputs[0].open("w") as out,
            self._outputs[1].open("w") as err,
        ):
            self.process = subprocess.Popen(
                command, cwd=folder, stdin=read, stdout=out, stderr=err, start_new_session=True,
                env={**kept, "NO_COLOR": "1", "TF_CPP_MIN_LOG_LEVEL": "2", **env},
            )  # fmt: skip

    def output(self) -> str:
        """What it has printed so far."""
        return self._outputs[0].read_text()

    def wait(self, timeout: float = 240.0) -> Done:
        """Its end; it is killed if that does not come, in time for as busy as the machine is."""
        try:
            code = self.process.wait(timeout * busy())
        finally:
            self.process.kill()
            self.process.wait()
        return Done(code, self.output(), self._outputs[1].read_text())

    def wait_for(self, text: str, timeout: float = 60.0) -> None:
        """Until it has printed something."""
        end = time.monotonic() + timeout
        while text not in self.output():
            assert self.process.poll() is None, self._outputs[1].read_text()[-2000:]
            assert time.monotonic() < end, f"no {text!r} in time"
            time.sleep(0.05)


def python(folder: Path, *args: str, stdin: str = "", **env: str) -> Running:
    """Plain Python."""
    return Running(folder, [sys.executable, *args], env, stdin)


def legroom(folder: Path, *args: str, stdin: str = "", **env: str) -> Running:
    """The command line."""
    return Running(folder, [LEGROOM, *args], env, stdin)
