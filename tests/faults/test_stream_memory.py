"""A stream over data of ten times its budget stays within it: else the kernel would kill it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .groups import memory_group
from .stream_child import BUDGET

pytestmark = pytest.mark.on_tensorflow("nothing is streamed on PyTorch yet")

CHILD = str(Path(__file__).with_name("stream_child.py"))


def run(kind: str, folder: Path) -> subprocess.CompletedProcess[str]:
    with memory_group(2**34) as group:
        command = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        return subprocess.run(
            ["sh", "-c", command, "sh", sys.executable, CHILD, kind, str(folder), str(group)],
            capture_output=True, text=True, timeout=240,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )  # fmt: skip


def streamed(kind: str, folder: Path) -> dict[str, Any]:
    done = run(kind, folder)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


# How uneven batches may be, beside those of a perfect shuffle: what the files allow. The rows of a
# group of Parquet's stay in one window.
EVEN = {"arrays": 1.3, "records": 1.4, "rows": 2.0, "images": 1.3}


@pytest.mark.parametrize(
    "kind",
    ["records", *(pytest.param(k, marks=pytest.mark.long) for k in ("arrays", "rows", "images"))],
)
def test_ten_times_the_budget(tmp_path: Path, kind: str) -> None:
    seen = streamed(kind, tmp_path)
    assert seen["once"]
    assert seen["another_order"]
    assert seen["neighbours"] < 0.01
    assert seen["spread"] < EVEN[kind]
    assert seen["grown"] <= BUDGET
    if kind == "records":
        assert run("plain", tmp_path).returncode == -9, "the group has room for more"
