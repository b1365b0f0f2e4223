"""`make bench`: what legroom costs, as ratios measured in one run, with what they compare against.

Writes benchmarks/results/latest.json as well.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}


def child(script: str, *arguments: object, silent: bool = False) -> dict[str, Any]:
    """Run a measurement in a process of its own; returns what it printed, unless it is silent."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=QUIET)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if silent and done.returncode == 0:
        return {}
    if done.returncode != 0 or not lines:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}")
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def say(what: str, value: str, target: str, met: bool | None) -> None:
    """Print one row."""
    mark = {True: "ok", False: "MISSED", None: ""}[met]
    print(f"  {what:<44}{value:>12}  {target:<14} {mark}", flush=True)


def say_ratio(what: str, seen: dict[str, Any], most: float, *, width: float = float("inf")) -> None:
    """Print a ratio of `take_turns`, with how well it is known.

    Args:
        what: What was compared.
        seen: What `take_turns` returned.
        most: What the ratio may be.
        width: With an interval wider than this, it was not measured: the machine was too busy.
    """
    within = f"<= {most}  ({seen['low']:.3f} to {seen['high']:.3f} in {seen['rounds']} rounds)"
    if seen["high"] - seen["low"] > width:
        say(what, f"{seen['ratio']:.3f}", f"{within}  not measured", None)
        return
    say(what, f"{seen['ratio']:.3f}", within, seen["ratio"] <= most)


def overhead(results: dict[str, Any]) -> None:
    """Nothing goes wrong: guarded over plain."""
    print("Nothing goes wrong (guarded fit / plain fit, turns taken in one process)")
    for name, most in (("toy", 1.05), ("convolutional", 1.02)):
        results[name] = seen = child("overhead.py", name)
        say_ratio(f"{name}, steps of {seen['plain_ms']:.1f} ms", seen, most)


# Models that are heavy for their batches, with what they are trained by.
HEAVY = [
    *((model, optimizer) for model in ("dense4000x4", "dense2000x16")
      for optimizer in ("sgd", "momentum", "adam", "adamw_clip")),
    ("embedding", "adam"), ("transformer", "adam"), ("convolutional", "adam"),
]  # fmt: skip


def heavy(results: dict[str, Any]) -> None:
    """Large models with small batches, whole: guarded over plain, time and peak.

    LEGROOM_BENCH_ONLY names some of them (embedding,transformer).
    """
    only = os.environ.get("LEGROOM_BENCH_ONLY", "").split(",")
    print("Large models with small batches (guarded / plain; time: turns taken in one process)")
    for model, optimizer in HEAVY:
        if only != [""] and model not in only:
            continue
        for jit in ([], ["--jit"]):
            time_ = child("heavy_time.py", model, optimizer, *jit)
            # Its ops run in another order in each step: the peak shows in many only.
            steps = ["--steps", 60] if model == "transformer" else []
            plain = child("heavy_peak.py", model, optimizer, "--plain", *jit, *steps)
            guarded = child("heavy_peak.py", model, optimizer, *jit, *steps)
            name = f"{model}, {optimizer}{', compiled' if jit else ''}"
            results[f"heavy {name}"] = {"time": time_, "plain": plain, "guarded": guarded}
            say_ratio(f"{name}: time", time_, 1.02, width=0.02)
            most = 1.03 * plain["peak"]
            if not jit:
                held = guarded["state"] + guarded["gradients"] + 4 * guarded["largest"]
                most = max(most, held)
            peak = guarded["peak"]
            what = f"  peak, {peak / 1e6:.0f} of {plain['peak'] / 1e6:.0f} MB"
            say(what, f"{peak / plain['peak']:.3f}", f"<= {most / plain['peak']:.3f}", peak <= most)


# Each in so many times plain's peak.
TIGHT = [
    ("dense4000x4", "adam"), ("dense4000x4", "adamw_clip"), ("dense1800x15", "sgd"),
    ("dense2000x16", "adam"), ("embedding", "adam"), ("ResNet50:96:2", "adam"),
    ("VGG16:64:4", "adam"),
]  # fmt: skip
TIGHT_ROOM = 1.05
APPLICATIONS = [
    "Xception", "VGG16", "VGG19", "ResNet50", "ResNet101", "ResNet152", "ResNet50V2",
    "ResNet101V2", "ResNet152V2", "InceptionV3", "InceptionResNetV2", "MobileNet", "MobileNetV2",
    "MobileNetV3Small", "MobileNetV3Large", "DenseNet121", "DenseNet169", "DenseNet201",
    "NASNetMobile", "NASNetLarge", "EfficientNetB0", "EfficientNetB1", "EfficientNetB2",
    "EfficientNetB3", "EfficientNetB4", "EfficientNetB5", "EfficientNetB6", "EfficientNetB7",
    "EfficientNetV2B0", "EfficientNetV2B1", "EfficientNetV2B2", "EfficientNetV2B3",
    "EfficientNetV2S", "EfficientNetV2M", "EfficientNetV2L", "ConvNeXtTiny", "ConvNeXtSmall",
    "ConvNeXtBase", "ConvNeXtLarge", "ConvNeXtXLarge",
]  # fmt: skip


def tight(results: dict[str, Any]) -> None:
    """A pool of 1.05 times plain's peak: what plain trains, legroom trains.

    With --full all of keras.applications, at batches of 2 and 8; LEGROOM_BENCH_ONLY names some of
    them (ResNet50,VGG16).
    """
    print(f"In {TIGHT_ROOM} times plain's peak (time: a step's, over plain's with room)")
    cases = list(TIGHT)
    if results["full"]:
        only = os.environ.get("LEGROOM_BENCH_ONLY")
        names = only.split(",") if only else APPLICATIONS
        sides = {"InceptionV3": 96, "InceptionResNetV2": 96, "Xception": 96}
        cases = [(f"{name}:{sides.get(name, 64)}:{batch}", "adam") for name in names
                 for batch in (2, 8)]  # fmt: skip
    for model, optimizer in cases:
        plain = child("heavy_peak.py", model, optimizer, "--plain", "--steps", 8)
        limit = -(-int(TIGHT_ROOM * plain["peak"]) // 2**20) * 2**20
        also = child("heavy_peak.py", model, optimizer, "--plain", "--steps", 8, "--limit", limit)
        seen = child("heavy_peak.py", model, optimizer, "--steps", 8, "--limit", limit)
        results[f"tight {model} {optimizer}"] = {"plain": plain, "guarded": seen}
        what = f"{model}, {optimizer}: {limit / 2**20:.0f} MiB"
        if not seen["fits"]:
            beside = "" if also["fits"] else "plain does not either"
            say(what, "refused", beside, False if also["fits"] else None)
            continue
        same = abs(seen["checksum"] / plain["checksum"] - 1) < 1e-6
        say(
            what, f"{seen['step'] / plain['step']:.2f}", "same weights" if same else "DIFFERS", same
        )
        for text in seen["said"]:
            print(f"      {text}")


def fits(results: dict[str, Any]) -> None:
    """`fit` again and again on one model: guarded over plain, from the tenth call on."""
    print("Repeated fits (guarded call / plain call, from the tenth on, turns in one process)")
    for name in ("toy", "convolutional"):
        for manner in ("fit", "guard"):
            results[f"fits_{name}_{manner}"] = seen = child("fits.py", name, manner)
            what = "legroom.fit" if manner == "fit" else "fit of a guarded model"
            say_ratio(f"{name}, {what}, {seen['plain_seconds']:.2f} s", seen, 1.02, width=0.02)


def importing(results: dict[str, Any]) -> None:
    """`import legroom`, beside Python's own start."""
    times = {}
    for name, code in (("python", "pass"), ("legroom", "import legroom")):
        best = float("inf")
        for _ in range(7):
            began = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True)
            best = min(best, time.perf_counter() - began)
        times[name] = best
    cost = times["legroom"] - times["python"]
    results["import_seconds"] = cost
    print("Importing")
    say("import legroom, beyond Python's own start", f"{cost:.3f} s", "<  0.1 s", cost < 0.1)


def capped(results: dict[str, Any]) -> None:
    """At 40 % of the plain peak: legroom's choice against every fixed slice size."""
    plain = child("capped.py", "--limit", 8 * 2**30, "--slice-size", 0)
    limit = max(32 * 2**20, int(plain["peak"] * 0.4))
    print(f"Capped at 40 % of the plain peak ({limit / 1e6:.0f} of {plain['peak'] / 1e6:.0f} MB)")
    fixed = {}
    for size in (1, 2, 4, 8, 12, 16, 20, 24, 28, 32, 48):
        seen = child("capped.py", "--limit", limit, "--slice-size", size)
        if not seen["fits"]:
            say(f"slices of {size}, fixed by hand", "out of memory", "", None)
            break
        fixed[size] = seen
        say(f"slices of {size}, fixed by hand", f"{seen['epoch']:.2f} s/epoch", "", None)
    best = min(fixed, key=lambda size: fixed[size]["epoch"])
    chosen = child("capped.py", "--limit", limit, "--epochs", 6)
    ratio = chosen["epoch"] / fixed[best]["epoch"]
    slices = [-(-64 // size) for size in (chosen["slice_size"], int(0.8 * max(fixed)))]
    results["capped"] = {
        "limit": limit, "plain": plain, "fixed": fixed, "chosen": chosen, "ratio": ratio,
    }  # fmt: skip
    say(f"as legroom chooses: slices of {chosen['slice_size']}", f"{chosen['epoch']:.2f} s/epoch",
        "", None)  # fmt: skip
    say(f"  over the best fixed size ({best})", f"{ratio:.3f}", "<= 1.10", ratio <= 1.10)
    say("  slices of a batch", f"{slices[0]}", f"<= {slices[1]}, with 0.8 of the largest size",
        slices[0] <= slices[1])  # fmt: skip
    say("  out-of-memory errors on the way", str(chosen["ooms"]), "", None)
    say("  and what they cost", f"{chosen['oom_seconds']:.1f} s", "", None)


def added_memory(results: dict[str, Any]) -> None:
    """Slices of 32 of a batch of 64, beside plain batches of 32; the batch itself not counted."""
    seen = {}
    for threads in (1, 0):
        plain = child("slice_memory.py", "--threads", threads)
        sliced = child("slice_memory.py", "--threads", threads, "--sliced")
        seen[threads] = {"plain": plain, "sliced": sliced}
    results["added_memory"] = seen
    gradients = seen[1]["plain"]["gradients"]
    print(f"Memory (one copy of the gradients: {gradients / 1e6:.1f} MB)")
    added = seen[1]["sliced"]["peak"] - seen[1]["plain"]["peak"]
    say("slices of 32 of 64, over plain batches of 32", f"{added / 1e6:.1f} MB",
        f"<= {gradients / 1e6:.1f} MB", added <= gradients)  # fmt: skip
    for name, parallel in seen[0].items():
        spread = "{:.0f} to {:.0f} MB".format(parallel["lowest"] / 1e6, parallel["highest"] / 1e6)
        say(f"  with ops side by side, {name}", spread, "", None)


def explain(results: dict[str, Any]) -> None:
    """Reading a log of a gigabyte."""
    seen = child("explain.py")
    results["explain"] = seen
    print("Explaining a log of 1 GB")
    speed, peak = seen["megabytes_per_second"], seen["peak_bytes"]
    say("speed", f"{speed:.0f} MB/s", ">  100 MB/s", speed > 100)
    say("peak memory", f"{peak / 1e6:.0f} MB", "<  200 MB", peak < 200e6)


def accuracy(results: dict[str, Any]) -> None:
    """The comparison of estimates with the truth; what is there is kept."""
    print("Estimates against the allocator's own peak (benchmarks/accuracy.py)", flush=True)
    run("accuracy.py", results)


def run(script: str, results: dict[str, Any]) -> None:
    """Run a benchmark that prints by itself and has a full form."""
    full = ["--full"] if results["full"] else []
    subprocess.run([sys.executable, str(HERE / script), *full], env=QUIET, check=True)


def recompute(results: dict[str, Any]) -> None:
    """Recomputing: memory and time over the plain step's, all ways in turns in one process."""
    print("Recomputing (activations and time over the plain step's, turns taken in one process)")
    for name, batch in (("ResNet50", 48), ("deep_transformer", 32)):
        seen = child("recompute.py", name, batch)
        results[f"recompute_{name}"] = seen
        half, even, like = seen["half"], seen["uniform"], seen["like uniform"]
        say(f"{name}, for half: memory", f"{half['memory']:.2f}", "<= 0.50", half["memory"] <= 0.5)
        say("  and time", f"{half['time']:.2f}", "<= 1.35", half["time"] <= 1.35)
        say("  every block: memory, time", f"{even['memory']:.2f}, {even['time']:.2f}", "", None)
        what = f"{like['memory']:.2f}, {like['time']:.2f}"
        say("  chosen for as much: memory, time", what, f"<= {even['time']:.2f}",
            like["time"] <= even["time"] * 1.02)  # fmt: skip


def planned(results: dict[str, Any]) -> None:
    """Planned training under a cap."""
    print("Planned training under a share of the plain peak (benchmarks/planned.py)", flush=True)
    run("planned.py", results)


def snapshots(results: dict[str, Any]) -> None:
    """What it costs to be able to go on, and how soon one does."""
    seen = child("snapshots.py", "measure")
    print(f"Snapshots ({seen['state_bytes'] / 1e6:.0f} MB of state, steps of "
          f"{seen['step_ms']:.0f} ms)")  # fmt: skip
    say("every 60 s, over none", f"{seen['ratio']:.4f}", "<= 1.02", seen["ratio"] <= 1.02)
    say("the training thread waits for the copy", f"{seen['copy_seconds']:.2f} s", "", None)
    say("until it is on the disk", f"{seen['write_seconds']:.2f} s", "", None)
    with tempfile.TemporaryDirectory() as folder:
        child("snapshots.py", "killed", folder, silent=True)
        again = child("snapshots.py", "resume", folder)
    results["snapshots"] = {**seen, "resume": again}
    added = again["added_seconds"]
    say("going on, beside a start anew", f"{added:.2f} s", "<= 2 s", added <= 2)


def watching(results: dict[str, Any]) -> None:
    """A step that is watched over one that is not."""
    print("Watching (watched / plain, turns taken in one process)")
    for name in ("toy", "convolutional", "loop"):
        results[f"watch_{name}"] = seen = child("doctor.py", name)
        what = "a loop over a tf.function" if name == "loop" else f"fit, {name}"
        say_ratio(f"{what}, steps of {seen['plain_ms']:.1f} ms", seen, 1.02)


def streams(results: dict[str, Any]) -> None:
    """Reading through legroom over reading through tf.data."""
    print("Streaming (legroom.stream / plain prefetching tf.data, turns taken in one process)")
    for kind in ("arrays", "records", "rows", "images"):
        results[f"stream_{kind}"] = seen = child("streams.py", kind)
        say_ratio(f"{kind}, a pass of {seen['plain_seconds']:.1f} s", seen, 1.05)


def diet(results: dict[str, Any]) -> None:
    """Predicted peaks of leaner models over measured ones."""
    print("Leaner models (predicted peak / measured peak, one thread)")
    results["diet"] = child("diet.py")["rows"]
    for row in results["diet"]:
        what = f"{row['model']}, {row['change']}: {row['measured'] / 1e6:.0f} MB"
        say(what, f"{row['ratio']:.3f}", "0.9 to 1.1", abs(row["ratio"] - 1) <= 0.1)


def seeing(results: dict[str, Any]) -> None:
    """What it costs to look on."""
    seen = child("seeing.py")
    results["seeing"] = seen
    print("Looking on")
    cores = os.cpu_count() or 1
    say("the live view, of all cores", f"{seen['view'] / cores:.2%}", "<  1 %",
        seen["view"] / cores < 0.01)  # fmt: skip
    say("samples of memory, of the training's time", f"{seen['sampling']:.3%}", "<  1 %",
        seen["sampling"] < 0.01)  # fmt: skip
    size = seen["page_bytes"]
    say("page of 2,000 layers and 1,000,000 samples", f"{size / 1e6:.2f} MB", "<  5 MB", size < 5e6)
    say("  made in", f"{seen['page_seconds']:.1f} s", "", None)


def sweep(results: dict[str, Any]) -> None:
    """Forty trainings of mixed size in 2 GiB, with one thread each: side by side, and in turn.

    With --full they are four times as long, so that starting forty processes weighs less.
    """
    samples = 6144 if results["full"] else 1536
    print(f"Forty trainings of mixed size in 2 GiB, one thread each, on {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as folder:
        loop = child("sweep.py", "loop", 0, folder, samples)
        alone = child("sweep.py", "sweep", 1, f"{folder}/alone", samples)
        many = child("sweep.py", "sweep", os.cpu_count(), f"{folder}/many", samples)
    results["sweep"] = {"loop": loop, "alone": alone, "many": many}
    say("finished", str(len(many["losses"])), "40, none lost", many["statuses"] == ["finished"])
    off = max(abs(a / b - 1) for a, b in zip(many["losses"], loop["losses"], strict=True))
    say("losses against the loop's, off by at most", f"{off:.1e}", "<= 1e-3", off <= 1e-3)
    for what, other, most in (
        (f"one after the other as a sweep, {alone['seconds']:.0f} s", alone, 0.6),
        (f"a loop in one process, {loop['seconds']:.0f} s", loop, 0.6 if results["full"] else 1.05),
    ):
        ratio = many["seconds"] / other["seconds"]
        say(f"side by side / {what}", f"{ratio:.3f}", f"<= {most}", ratio <= most)
    say("processes started", str(many["starts"]), "40, if no cap was too small", None)


PARTS = {
    part.__name__: part
    for part in (
        overhead, heavy, fits, tight, importing, capped, added_memory, explain, accuracy,
        recompute, planned, snapshots, watching, streams, diet, seeing, sweep,
    )
}  # fmt: skip


def main() -> None:
    """Run all measurements, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"{', '.join(PARTS)}; all without")
    parser.add_argument("--full", action="store_true", help="all models and caps; hours")
    options = parser.parse_args()
    chosen = options.parts or list(PARTS)
    if unknown := [part for part in chosen if part not in PARTS]:
        parser.error(f"there is no part {unknown[0]}; there are {', '.join(PARTS)}")
    results: dict[str, Any] = {"machine": platform.platform(), "cores": os.cpu_count(),
                               "full": options.full}  # fmt: skip
    for part in chosen:
        PARTS[part](results)
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "latest.json").write_text(json.dumps(results, indent=1))
    print(f"Written to {RESULTS / 'latest.json'}")


if __name__ == "__main__":
    main()
