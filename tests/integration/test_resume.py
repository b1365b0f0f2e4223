"""Stopping and going on, as a user meets it: signals, edits, folders. Whole scripts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from legroom.supervisor.place import default_folder

from .conftest import LEGROOM, Place

TRAINS = """
import sys, time
import keras
import numpy as np

keras.utils.set_random_seed(3)
x = np.arange(640, dtype="float32").reshape(160, 4) / 640
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")


class Slow(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        time.sleep(0.1)  # so that a second run can be started meanwhile, on a busy machine too


history = model.fit(x, x[:, :1], batch_size=16, epochs=4, verbose=0, callbacks=[Slow()])
print("losses", *history.history["loss"])
"""


class Script:
    """A script that trains, and what becomes of it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.path = place.write(TRAINS, "train.py")
        self.kept = place.folder / ".legroom" / "train.py"

    def start(self, *options: str) -> subprocess.Popen[str]:
        return self.place.start("run", *options, "train.py", TF_CPP_MIN_LOG_LEVEL="3")

    def until_training(self, parent: subprocess.Popen[str]) -> None:
        end = time.monotonic() + 90
        journal = self.kept / "journal.jsonl"
        while time.monotonic() < end and parent.poll() is None:
            if journal.exists() and '"attempt_passed"' in journal.read_text():
                time.sleep(0.4)
                return
            time.sleep(0.02)
        raise AssertionError(parent.communicate()[1])

    def to_the_end(self, *options: str) -> tuple[int, str, str]:
        parent = self.start(*options)
        output, errors = parent.communicate(timeout=120)
        return parent.returncode, output, errors


@pytest.fixture
def script(place: Place) -> Script:
    return Script(place)


def test_one_script_with_several_arguments_at_once(script: Script) -> None:
    runs = [script.place.start("run", "train.py", "--lr", rate) for rate in ("0.1", "0.2")]
    kept = [default_folder(script.path, ("--lr", rate)) for rate in ("0.1", "0.2")]
    for folder, parent in zip(kept, runs, strict=True):
        script.kept = folder
        script.until_training(parent)
    runs[0].send_signal(signal.SIGTERM)
    assert "run the same command to resume" in runs[0].communicate(timeout=60)[1]
    assert runs[1].wait(timeout=60) == 0
    assert [folder.exists() for folder in kept] == [True, False]
    # Found again by its arguments, and by nothing else.
    other = script.place.legroom("run", "train.py", "--lr", "0.3")
    assert other.returncode == 0
    assert "resum" not in other.stderr
    again = script.place.legroom("run", "train.py", "--lr", "0.1")
    assert again.returncode == 0
    assert "resuming the run of" in again.stderr
    assert not kept[0].parent.exists()


def test_sigterm_an_edit_and_going_on_all_the_same(script: Script) -> None:
    parent = script.start()
    script.until_training(parent)
    # Another run in the same folder, meanwhile.
    second = subprocess.run(
        [LEGROOM, "run", "train.py"], cwd=script.place.folder, capture_output=True, text=True,
        env=script.place.environment(), timeout=60,
    )  # fmt: skip
    assert second.returncode == 1
    assert "Another run works in" in second.stderr
    began = time.monotonic()
    parent.send_signal(signal.SIGTERM)
    _, errors = parent.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert parent.returncode == -signal.SIGTERM
    assert "everything is saved" in errors
    assert "run the same command to resume" in errors
    # Edited: not resumed, and said; what was kept is put aside.
    script.path.write_text(TRAINS.replace("epochs=4", "epochs=1"))
    code, output, errors = script.to_the_end()
    assert code == 0
    assert "the script was edited" in errors
    assert "training 1 resumes" not in errors
    assert len(output.split()) == 2
    # Put aside, it can be gone on with by name; with the edit taken back, it is the same training.
    script.path.write_text(TRAINS)
    previous = script.kept / "previous"
    assert list(previous.glob("*.snapshot"))
    code, output, errors = script.to_the_end("--resume", str(previous))
    assert code == 0
    assert "training 1 resumes at" in errors
    plain = script.place.plain("train.py", TF_CPP_MIN_LOG_LEVEL="3")
    assert output == plain.stdout


def test_ctrl_c_once_keeps_all_and_fresh_forgets_it(script: Script) -> None:
    parent = script.start()
    script.until_training(parent)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert parent.returncode == -signal.SIGINT
    assert "everything is saved" in errors
    assert errors.count("\nKeyboardInterrupt\n") == 1
    assert list(script.kept.glob("*.snapshot"))
    code, _, errors = script.to_the_end("--fresh")
    assert code == 0
    assert "resum" not in errors
    assert not list(script.kept.glob("*.snapshot"))


def test_ctrl_c_twice_stops_at_once(script: Script) -> None:
    script.path.write_text(TRAINS.replace("time.sleep(0.05)", "time.sleep(30)"))
    parent = script.start()
    script.until_training(parent)
    began = time.monotonic()
    os.killpg(parent.pid, signal.SIGINT)
    time.sleep(0.5)
    os.killpg(parent.pid, signal.SIGINT)
    _, errors = parent.communicate(timeout=60)
    assert time.monotonic() - began < 10
    assert parent.returncode == -signal.SIGINT
    assert "KeyboardInterrupt" in errors


def test_a_place_that_can_not_be_written_costs_a_warning(place: Place) -> None:
    place.write("print('ran')", "train.py")
    (place.folder / "file").write_text("")
    done = place.legroom("run", "--dir", "file/below", "train.py")
    assert (done.returncode, done.stdout) == (0, "ran\n")
    assert "can't be written" in done.stderr
    assert "The script runs anyway" in done.stderr


def test_nothing_to_resume_is_an_error(place: Place) -> None:
    place.write("print('ran')", "train.py")
    done = place.legroom("run", "--resume", "nowhere", "train.py")
    assert done.returncode == 1
    assert "nothing to resume" in done.stderr
    assert place.legroom("run", "--resume", "x", "--fresh", "train.py").returncode == 2


def test_a_script_without_training_leaves_nothing(place: Place) -> None:
    place.write("import os; print(sorted(os.listdir('.')))\nraise SystemExit(5)", "train.py")
    assert place.legroom("run", "train.py").returncode == 5
    assert [path.name for path in place.folder.iterdir()] == ["train.py"]


NOTEBOOK = """
import sys, os
import keras
import numpy as np
import legroom

x = np.arange(640, dtype="float32").reshape(160, 4) / 640
keras.utils.set_random_seed(5)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("adam", "mse")


class Dies(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and "dies" in sys.argv:
            import time

            time.sleep(1)  # for the snapshot to be written
            os.kill(os.getpid(), 9)


history = legroom.fit(model, x, x[:, :1], epochs=4, verbose=0, callbacks=[Dies()],
                      snapshots="kept" if "plain" not in sys.argv else None)
print(*history.history["loss"], *model.get_weights()[0].ravel())
"""


def test_a_call_in_a_notebook_goes_on_too(place: Place) -> None:
    place.write(NOTEBOOK, "cell.py")
    quiet = {"TF_CPP_MIN_LOG_LEVEL": "3"}
    assert place.plain("cell.py", "dies", **quiet).returncode == -signal.SIGKILL
    assert list((place.folder / "kept").glob("*.snapshot"))
    again = place.plain("cell.py", **quiet)
    assert again.returncode == 0, again.stderr
    assert "training 1 resumes at" in again.stderr
    assert again.stdout == place.plain("cell.py", "plain", **quiet).stdout
    assert not (place.folder / "kept").exists()


@pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="needs to mount a disk")
def test_a_full_disk_costs_a_warning_and_not_the_training(script: Script, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)],
                             capture_output=True, text=True)  # fmt: skip
    if mounted.returncode != 0:
        pytest.skip(f"a small disk can't be mounted here: {mounted.stderr.strip()}")
    try:
        (disk / "filler").write_bytes(b"x" * 40_000)
        code, output, errors = script.to_the_end("--dir", str(disk), "--snapshot-every", "0.1")
        assert code == 0, errors
        assert output.startswith("losses")
        assert "the disk is full" in errors
        assert errors.count("the disk is full") == 1
        assert [p.name for p in disk.iterdir() if p.name.startswith(".unfinished")] == []
    finally:
        subprocess.run(["umount", str(disk)], check=False)
