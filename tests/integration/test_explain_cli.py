"""``legroom explain`` as a user calls it: files, pipes, notebooks, and what is neither."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import Any

import pytest

LEGROOM = str(Path(sysconfig.get_path("scripts")) / "legroom")
OOM = Path(__file__).parents[1] / "fixtures" / "oom"
SAMPLE = OOM / "samples" / "01.txt"
COLOURS = ("NO_COLOR", "FORCE_COLOR", "COLUMNS")


def explain(*args: str, stdin: bytes = b"", **env: str) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if key not in COLOURS}
    return subprocess.run(
        [LEGROOM, "explain", *args], input=stdin, env={**kept, **env}, capture_output=True,
        timeout=120,
    )  # fmt: skip


def diagnosis(*args: str, stdin: bytes = b"") -> dict[str, Any]:
    done = explain(*args, "--json", stdin=stdin)
    assert done.returncode == 0, done.stderr
    assert done.stderr == b""
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["kind"] == "Diagnosis"
    return document


@pytest.mark.parametrize(
    "path", sorted((OOM / "samples").glob("*.txt")), ids=lambda path: path.stem
)
def test_every_sample_is_answered(path: Path) -> None:
    done = explain(str(path))
    assert done.returncode == 0
    assert done.stderr == b""
    lines = done.stdout.decode().splitlines()
    assert 2 <= len(lines) <= 18
    assert max(map(len, lines)) <= 80


def test_json_has_the_fields_that_are_promised() -> None:
    assert set(diagnosis(str(SAMPLE))) >= {
        "is_oom", "fatal", "framework", "where", "device", "requested_bytes", "shape", "dtype",
        "op", "layer", "limit_bytes", "in_use_bytes", "largest_free_bytes", "fragmented", "growth",
        "story", "remedies",
    }  # fmt: skip


def test_a_pipe() -> None:
    data = SAMPLE.read_bytes()
    assert diagnosis("-", stdin=data)["shape"] == [64, 2016, 9, 9]
    assert diagnosis(stdin=data)["shape"] == [64, 2016, 9, 9]


def test_a_message_that_a_window_broke(tmp_path: Path) -> None:
    """As `legroom demo` shows the death of its plain run, and as people paste it."""
    path = tmp_path / "demo.log"
    path.write_text(
        "   died after 24 s:\n"
        "     ResourceExhaustedError: OOM when allocating tensor with shape[64,48,48,32]\n"
        "     and type float on /job:localhost/replica:0/task:0/device:CPU:0 by\n"
        "     allocator bfc_cpu_allocator_for_gpu\n\n3  legroom run --memory 276MB train.py\n"
    )
    for padding in ("", "Epoch 1/5\n" * 20_000):  # short as a paste, and long as a log
        path.write_text(padding + path.read_text())
        read = diagnosis(str(path))
        assert (read["device"], read["where"]) == ("CPU:0", "host")
        assert (read["dtype"], read["requested_bytes"]) == ("float32", 64 * 48 * 48 * 32 * 4)


def test_an_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "empty.log"
    path.touch()
    assert diagnosis(str(path))["is_oom"] is False
    assert explain(str(path)).stdout.startswith(b"Nothing found")


def test_random_bytes(tmp_path: Path) -> None:
    path = tmp_path / "random"
    path.write_bytes(os.urandom(10_000_000))
    assert diagnosis(str(path))["is_oom"] is False


def test_a_directory_and_a_missing_file_are_said(tmp_path: Path) -> None:
    for name, words in ((str(tmp_path), b"directory"), (str(tmp_path / "no.log"), b"no such file")):
        done = explain(name)
        assert done.returncode == 2
        assert done.stdout == b""
        assert words in b" ".join(done.stderr.split())
        assert b"Traceback" not in done.stderr


def test_a_pipe_that_is_closed() -> None:
    done = subprocess.run(
        f"{LEGROOM} explain - <&-", shell=True, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "Nothing to read" in " ".join(done.stderr.split())


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_said(tmp_path: Path) -> None:
    path = tmp_path / "secret.log"
    path.touch(mode=0)
    done = explain(str(path))
    assert done.returncode == 1
    assert b"can't be read" in done.stderr


def test_a_notebook(tmp_path: Path) -> None:
    error = (OOM / "samples" / "08a.txt").read_text()
    cells = [
        {"cell_type": "markdown", "source": ["OOM when allocating tensor with shape[9]"]},
        {
            "cell_type": "code", "source": ["CUDA out of memory"],
            "outputs": [
                {"output_type": "stream", "name": "stdout", "text": ["Epoch 1/5\n", "1/9 [...]\r"]},
                {
                    "output_type": "error", "ename": "ResourceExhaustedError", "evalue": "…",
                    "traceback": ["\x1b[0;31mResourceExhaustedError\x1b[0m: ", error],
                },
            ],
        },
    ]  # fmt: skip
    path = tmp_path / "train.ipynb"
    path.write_text(json.dumps({"cells": cells, "nbformat": 4, "metadata": {}}))
    read = diagnosis(str(path))
    assert (read["shape"], read["op"], read["framework"]) == (
        [3, 3, 512, 1024],
        "Mul",
        "tensorflow",
    )
    assert diagnosis("-", stdin=path.read_bytes())["shape"] == [3, 3, 512, 1024]


def test_a_notebook_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "broken.ipynb"
    path.write_bytes(b'{"cells": [{"outputs": "Killed"\n' + SAMPLE.read_bytes())
    assert diagnosis(str(path))["shape"] == [64, 2016, 9, 9]


def test_colours_only_where_they_are_wanted() -> None:
    assert b"\x1b" not in explain(str(SAMPLE)).stdout
    assert b"\x1b" in explain(str(SAMPLE), FORCE_COLOR="1").stdout
    assert b"\x1b" not in explain(str(SAMPLE), FORCE_COLOR="1", NO_COLOR="1").stdout


def test_a_terminal_that_knows_ascii_only() -> None:
    done = explain(str(SAMPLE), PYTHONIOENCODING="ascii", LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 0
    assert b"64 ? 2016" in done.stdout


def test_what_a_log_says_is_not_obeyed() -> None:
    evil = b"\x1b]0;owned\x07\x1b[2J\x9b2J" + SAMPLE.read_bytes().replace(b"cell_12", b"\x1b[31mx")
    assert b"\x1b" not in explain("-", stdin=evil).stdout


def test_a_live_pipe_is_explained_at_ctrl_c() -> None:
    """What came before the interrupt is answered, and the exit code says that it was one."""
    process = subprocess.Popen(
        [LEGROOM, "explain", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write(SAMPLE.read_bytes())
    process.stdin.flush()
    time.sleep(3)  # until it is reading
    process.send_signal(signal.SIGINT)
    out, error = process.communicate(timeout=30)
    assert process.returncode == 130, error
    assert b"AvgPool_1" in out


def test_help_names_it() -> None:
    done = subprocess.run([LEGROOM, "--help"], capture_output=True, text=True, timeout=60)
    assert "explain" in done.stdout
