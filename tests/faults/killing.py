"""Runs that are really killed: under ``legroom run``, from outside; and started again."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from legroom.supervisor.place import default_folder

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")
CHILD = Path(__file__).with_name("kept_child.py")
TORCH_CHILD = Path(__file__).with_name("kept_torch_child.py")
JAX_CHILD = Path(__file__).with_name("kept_jax_child.py")
JAX_LOOP_CHILD = Path(__file__).with_name("kept_jax_loop_child.py")
TIMEOUT = 240


class Killed:
    """A training in a folder of its own.

    Args:
        folder: The folder.
        case: Which training of kept_child.py.
        pause: Seconds that each batch takes longer, so that there is time to kill.
        child: Another script than that.
        variables: More variables of its environment.
    """

    def __init__(
        self, folder: Path, case: str, pause: float = 0.03, child: Path = CHILD, **variables: str
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.case = case
        self._arguments = (case, "out.npz")
        self.script = folder / "train.py"
        shutil.copy(child, self.script)
        self.environment = {
            **{k: v for k, v in os.environ.items() if k != "LEGROOM_MEMORY"},
            "TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "NO_COLOR": "1",
            "KEPT_PAUSE": str(pause), **variables,
        }  # fmt: skip
        self.said = ""

    @property
    def kept(self) -> Path:
        return default_folder(self.script, self._arguments)

    def events(self) -> list[dict]:
        try:
            lines = (self.kept / "journal.jsonl").read_text().splitlines()
        except OSError:
            return []
        return [json.loads(line) for line in lines if line.endswith("}")]

    def snapshots(self, epoch: int, training: int = 0) -> int:
        """How many were written of an epoch and those after it, and of a training likewise."""
        return sum(
            event["name"] == "snapshot"
            and (event["data"].get("epoch") or 0) >= epoch
            and (event["data"].get("training") or 0) >= training
            for event in self.events()
        )

    def undisturbed(self) -> dict[str, np.ndarray]:
        """The same training by plain Python."""
        out = self.folder / "plain.npz"
        subprocess.run(
            [sys.executable, str(self.script), self.case, str(out)],
            env={**self.environment, "KEPT_PAUSE": "0"}, check=True, capture_output=True,
            timeout=TIMEOUT,
        )  # fmt: skip
        return dict(np.load(out))

    def start(self, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [LEGROOM, "run", "--snapshot-every", "0.2", *options, "train.py", *self._arguments],
            cwd=self.folder, env=self.environment, text=True, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def kill(
        self, number: int, rng: random.Random, *options: str, epoch: int = 0, training: int = 0
    ) -> bool:
        """Start, kill the child at a random moment after a snapshot; whether it was killed.

        The snapshot is one that this process has written, of this epoch or a later one, and of
        this training or a later one.
        """
        before = self.snapshots(epoch, training)
        parent = self.start(*options)
        end = time.monotonic() + TIMEOUT
        while (
            parent.poll() is None
            and self.snapshots(epoch, training) <= before
            and time.monotonic() < end
        ):  # fmt: skip
            time.sleep(0.01)
        time.sleep(rng.random() * 0.6)
        child = child_of(parent)
        if child is not None:
            os.kill(child, number)
        self._end(parent)
        if child is not None:
            assert parent.returncode == -number, self.said[-3000:]
        return child is not None

    def finish(self, *options: str) -> dict[str, np.ndarray]:
        """Start, and let it come to its end."""
        parent = self.start(*options)
        self._end(parent)
        assert parent.returncode == 0, self.said[-3000:]
        return dict(np.load(self.folder / "out.npz"))

    def _end(self, parent: subprocess.Popen[str]) -> None:
        _, said = parent.communicate(timeout=TIMEOUT)
        self.said += said


def killed_and_finished(
    folder: Path,
    child: Path,
    cases: list[str],
    signals: list[tuple[int, int]],
    seed: int,
    **variables: str,
) -> Killed:
    """Kill a process of several trainings by each signal in one, let it end, and compare."""
    rng = random.Random(seed)
    training = Killed(folder, "+".join(cases), pause=0.02, child=child, **variables)
    with ThreadPoolExecutor(1) as pool:
        plain = pool.submit(training.undisturbed)
        for number, part in signals:
            assert training.kill(number, rng, training=part), training.said[-3000:]
        out = training.finish()
        expected = plain.result()
    assert same(expected, out) == [], training.said[-3000:]
    for case in cases:  # every sample of every epoch exactly once
        assert set(out[f"{case} counts"]) == {3.0}
    assert "resumes" in training.said
    assert "in another order" not in training.said
    assert not (folder / ".legroom").exists()
    return training


def child_of(parent: subprocess.Popen[str]) -> int | None:
    try:
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
    except OSError:
        return None
    return int(children[0]) if children else None


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> list[str]:
    """The names of what differs, by a single bit."""
    return [
        name
        for name in dict.fromkeys((*one, *other))
        if name not in one or name not in other or not np.array_equal(one[name], other[name])
    ]


SIGNALS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
