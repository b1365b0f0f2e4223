"""Running scripts as a user does: plain Python, and ``legroom run``, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")
TIMEOUT = 60


class Place:
    """A folder with scripts in it, and ways to run them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def write(self, code: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(code))
        return path

    def environment(self, **extra: str) -> dict[str, str]:
        unwanted = ("LEGROOM_MEMORY", "TF_USE_LEGACY_KERAS", "COLUMNS")
        kept = {key: value for key, value in os.environ.items() if key not in unwanted}
        return {**kept, "NO_COLOR": "1", **extra}

    def plain(self, *command: str, stdin: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        return self._run([sys.executable, *command], stdin, env)

    def legroom(
        self, *command: str, stdin: str = "", **env: str
    ) -> subprocess.CompletedProcess[str]:
        return self._run([LEGROOM, *command], stdin, env)

    def start(self, *command: str, **env: str) -> subprocess.Popen[str]:
        """``legroom …`` in a session of its own, so that its process group can be signalled."""
        return subprocess.Popen(
            [LEGROOM, *command],
            cwd=self.folder, env=self.environment(**env), start_new_session=True, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def _run(
        self, command: list[str], stdin: str, env: dict[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, env=self.environment(**env), input=stdin,
            capture_output=True, text=True, timeout=TIMEOUT,
        )  # fmt: skip


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def same_as_plain(place: Place) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a script both ways, compare all there is to see of it, and return what it did."""

    def run(code: str, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        place.write(code)
        plain = place.plain("script.py", *args, stdin=stdin)
        guarded = place.legroom("run", "script.py", *args, stdin=stdin)
        assert guarded.stdout == plain.stdout
        assert guarded.stderr == plain.stderr
        assert guarded.returncode == plain.returncode
        return guarded

    return run
