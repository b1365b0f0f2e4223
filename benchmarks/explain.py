"""How fast ``legroom explain`` reads a log, and in how much memory.

Writes a log of a gigabyte as a long training leaves it: progress bars with colours and carriage
returns, log lines of several libraries (some of which speak of memory all the time), warnings that
are no failures, and three failures with their dumps. Then reads it with ``wc -l`` and with
legroom, each several times, and prints the ratio.

    python benchmarks/explain.py [--megabytes 1024] [--runs 3]
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
DUMP = HERE.parent / "tests/fixtures/oom/logs/tf221_bfc_dump.txt"
CHILD = """
import json, sys, time
from legroom.messages import diagnose_stream
begin = time.perf_counter()
with open(sys.argv[1], "rb") as stream:
    diagnosis = diagnose_stream(stream)
seconds = time.perf_counter() - begin
status = open("/proc/self/status").read().split()
peak = int(status[status.index("VmHWM:") + 1]) * 1024
print(json.dumps({"seconds": seconds, "peak_bytes": peak, "failures": diagnosis.failures}))
"""


def ordinary_lines(seed: int) -> Iterator[bytes]:
    """What a training writes while nothing happens."""
    dice = random.Random(seed)
    step = 0
    while True:
        step += 1
        loss, memory = dice.random(), dice.randrange(2000, 9000)
        yield (
            f"\r{step % 1563:4d}/1563 \x1b[32m{'━' * (step % 20)}\x1b[0m "
            f"\x1b[1m{dice.randrange(99)}s\x1b[0m {dice.randrange(90)}ms/step - loss: {loss:.4f}"
        ).encode()
        if step % 5 == 0:
            yield (
                f"\n2024-03-11 16:42:26,{step % 1000:03d} - mmdet - INFO - Epoch [{step % 12}]"
                f"[{step}/7330] lr: 1.000e-04, eta: 1 day, 3:22:41, time: 0.{memory}, "
                f"data_time: 0.021, memory: {memory}, loss_cls: {loss:.4f}\n"
            ).encode()
        if step % 50 == 0:
            yield (
                f"2024-03-11 16:42:26.{step % 1000000:06d}: W tensorflow/core/framework/"
                f"cpu_allocator_impl.cc:82] Allocation of {memory * 100000} exceeds 10% of free "
                "system memory.\n"
            ).encode()
        if step % 11 == 0:
            yield b'{"level": "info", "worker": 3, "msg": "batch done", "queue": 12, "ok": true}\n'


def write_log(path: Path, megabytes: int) -> None:
    """A log with three failures: a third of the way, at two thirds and at the end."""
    size = megabytes * 1_000_000
    dump = DUMP.read_bytes()
    with path.open("wb") as log:
        # A block of some megabytes, repeated: making each line anew would take minutes.
        block = bytearray()
        for line in ordinary_lines(1):
            block += line
            if len(block) > 8_000_000:
                break
        marks = [size // 3, 2 * size // 3]
        while log.tell() < size:
            log.write(block)
            if marks and log.tell() > marks[0]:
                marks.pop(0)
                log.write(b"\n" + dump + b"\n")
        log.write(b"\n" + dump + b"\nKilled\n")


def measure(path: Path, runs: int) -> dict[str, float]:
    """The best of several runs, for both: the machine may be doing something else."""
    size = path.stat().st_size
    results: list[dict[str, float]] = []
    counts: list[float] = []
    for _ in range(runs):
        begin = time.perf_counter()
        subprocess.run(["wc", "-l", str(path)], check=True, stdout=subprocess.DEVNULL)
        counts.append(time.perf_counter() - begin)
        child = subprocess.run(
            [sys.executable, "-c", CHILD, str(path)], check=True, capture_output=True, text=True
        )
        results.append(json.loads(child.stdout))
    seconds, wc_seconds = min(one["seconds"] for one in results), min(counts)
    return {
        "bytes": size,
        "failures": results[0]["failures"],
        "seconds": seconds,
        "megabytes_per_second": size / seconds / 1e6,
        "wc_seconds": wc_seconds,
        "ratio_to_wc": seconds / wc_seconds,
        "peak_bytes": max(one["peak_bytes"] for one in results),
    }


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--runs", type=int, default=3)
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="legroom-bench-"))
    try:
        path = folder / "train.log"
        write_log(path, arguments.megabytes)
        result = measure(path, arguments.runs)
    finally:
        shutil.rmtree(folder)
    print(f"explain: {result['megabytes_per_second']:.0f} MB/s on {result['bytes'] / 1e6:.0f} MB")
    print(f"explain: {result['ratio_to_wc']:.1f} × the time of wc -l")
    print(f"explain: {result['peak_bytes'] / 1e6:.0f} MB of memory at the peak")
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    document = {"benchmark": "explain", "python": platform.python_version(), **result}
    (results / "explain.json").write_text(json.dumps(document, indent=1) + "\n")
    print(json.dumps(document))  # for benchmarks/run.py


if __name__ == "__main__":
    main()
