"""What it costs to look: the live view, the samples of memory, and a large page.

The view is drawn by the parent, beside the training: what it takes of the cores is the most that a
training can lose to it. So its processor time is measured, while a script tells as much as a
training does.
"""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from legroom.core.events import Event, MemorySampled, Predicted
from legroom.report.html.page import make_page, read_for_page
from legroom.report.reading import KeptRun
from legroom.report.run import RunReport

SECONDS = 20
SCRIPT = f"""
import time
from legroom.core.events import MemorySampled, Progress, emit
emit(Progress(budget_bytes=100_000_000))
for k in range({2 * SECONDS + 16}):
    emit(MemorySampled(device_bytes=50_000_000 + k % 10 * 1_000_000, host_bytes=200_000_000,
                       peak_bytes=60_000_000, steps=k, samples=64 * k))
    for _ in range(5):
        print(f"\\rstep {{k}}", end="", flush=True)
        time.sleep(0.1)
"""
PARTS = ("weights", "gradients", "optimizer", "activations", "workspace", "input", "other")


def view() -> float:
    """The share of one core that the parent takes while it draws."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(SCRIPT)
        master, slave = pty.openpty()
        command = [str(Path(sysconfig.get_path("scripts")) / "legroom"), "run", "--view"]
        parent = subprocess.Popen(
            [*command, str(script)], stdin=slave, stdout=slave, stderr=slave,
            env={**os.environ, "TERM": "xterm-256color"},
        )  # fmt: skip
        threading.Thread(target=_drain, args=(master,), daemon=True).start()
        process = psutil.Process(parent.pid)
        time.sleep(3)  # its start is not the view's
        before, began = sum(process.cpu_times()[:2]), time.perf_counter()
        time.sleep(SECONDS)
        share = (sum(process.cpu_times()[:2]) - before) / (time.perf_counter() - began)
        parent.terminate()
        parent.wait()
        return share


def _drain(master: int) -> None:
    while os.read(master, 65536):
        pass


def sampling() -> float:
    """The share of the training's time that goes to looking at its memory."""
    code = (
        "import time, tensorflow as tf; tf.zeros(1)\n"
        "from legroom.backends.tensorflow import pool\n"
        "from legroom.guarding.showing.sampling import _LOOK_EVERY, _Looked\n"
        "looked = _Looked(pool); looked.look(); began = time.perf_counter()\n"
        "for _ in range(2000): looked.look()\n"
        "print((time.perf_counter() - began) / 2000 / _LOOK_EVERY)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout)


def page(samples: int = 1_000_000, layers: int = 2000, ops: int = 20_000) -> dict[str, Any]:
    """How long the page of a long run of a deep model takes to make, and its size."""
    line = [[f"model/layer_{k % layers}/op_{k}", 10**9 + k] for k in range(ops)]
    estimate = {
        "model": "deep", "method": "fit", "batch_size": 64, "peak_bytes": 10**9 + ops,
        "low_bytes": 0, "high_bytes": 2 * 10**9, "first_step_bytes": 0, "source": "traced",
        "breakdown": dict.fromkeys(PARTS, 10**8), "timeline": line,
        "parts": [[size, 0, 0, 0, 0, 0, 0] for _, size in line],
        "layers": [[f"layer_{k}", 10**7 + k] for k in range(layers)],
    }  # fmt: skip
    told: list[Event] = [Predicted(at=0, estimate=estimate)]
    told += [
        MemorySampled(at=k, device_bytes=k % 1000, host_bytes=k, steps=k) for k in range(samples)
    ]
    report = RunReport.from_events(told)
    began = time.perf_counter()
    made = make_page([read_for_page(KeptRun("deep", Path("deep"), report))])
    return {"page_seconds": time.perf_counter() - began, "page_bytes": len(made.encode())}


if __name__ == "__main__":
    print(json.dumps({"view": view(), "sampling": sampling(), **page()}))
