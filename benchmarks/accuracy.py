"""How near estimates come to the truth, over the zoo.

    python benchmarks/accuracy.py            a short form, under ten minutes on two idle cores
    python benchmarks/accuracy.py --full     every model, optimizer and precision: hours

The truth is the allocator's own peak of a training in a fresh process. Models set aside while the
predictions were built are reported apart. Writes benchmarks/results/accuracy.json, which grows
with each run: what was measured is not measured again unless --again is given.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "accuracy.json"
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
SHORT = ("small_cnn", "transformer", "lstm", "resnet_small", "vit", "autoencoder", "subclassed",
         "two_towers")  # fmt: skip
SOURCES = ("probed", "traced", "line", "grappler")
Case = tuple[str, str, str, int]


def child(script: str, *arguments: object) -> dict[str, Any] | None:
    """Run a measurement in a process of its own; None where it failed."""
    command = [sys.executable, str(HERE / script), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=QUIET)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        last = done.stderr.strip().splitlines()[-1:] or ["no output"]
        print(f"  failed: {' '.join(map(str, arguments))}: {last[0][:200]}", flush=True)
        return None
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def cases(full: bool) -> list[tuple[str, str, str]]:
    """Model, optimizer and precision of each case."""
    from zoo_names import NAMES

    if not full:
        return [(name, ("adam", "sgd")[i % 2], "float32") for i, name in enumerate(SHORT)]
    made = [(name, optimizer, "float32") for name in NAMES for optimizer in ("sgd", "adam")]
    made += [(name, "adamw", "mixed_float16") for name in NAMES]
    return made


def measure(results: dict[str, Any], full: bool, again: bool) -> None:
    """Estimates and truths of every case that is not there yet."""
    from zoo_names import NAMES

    for name, optimizer, precision in cases(full):
        sizes = NAMES[name]
        for threads in (1, 0):
            key = f"{name} {optimizer} {precision} {threads}"
            if key in results and not again:
                continue
            made = child(
                "accuracy_estimates.py", name, optimizer, precision, ",".join(map(str, sizes)),
                "--threads", threads, *(["--grappler"] if threads else []),
            )  # fmt: skip
            if made is None:
                continue
            for size in sizes:
                truth = child("accuracy_child.py", name, optimizer, precision, size,
                              "--threads", threads)  # fmt: skip
                made[str(size)]["truth"] = truth
                if truth:
                    ratio = made[str(size)]["probed"]["peak"] / truth["steady"] - 1
                    quick = made[str(size)]["traced"]["peak"] / truth["steady"] - 1
                    print(f"  {key:<40}{size:>5}  {truth['steady'] / 1e6:8.1f} MB  probed "
                          f"{ratio:+6.1%}  traced {quick:+6.1%}", flush=True)  # fmt: skip
            results[key] = made
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(results, indent=1))


def rows(results: dict[str, Any], threads: int, aside: bool | None) -> list[dict[str, Any]]:
    """The measured cases, with the number of threads, of one part of the zoo or of both."""
    from zoo_names import SET_ASIDE

    found = []
    for key, sizes in results.items():
        name, _, _, used = key.split()
        if int(used) == threads and (aside is None or (name in SET_ASIDE) == aside):
            found += [each for each in sizes.values() if each.get("truth")]
    return found


def summary(found: list[dict[str, Any]], source: str) -> dict[str, float] | None:
    """The errors of a source."""
    pairs = [(each[source], each["truth"]) for each in found if each.get(source, {}).get("peak")]
    if not pairs:
        return None
    errors = sorted(abs(made["peak"] / truth["steady"] - 1) for made, truth in pairs)
    bars = [(made["high"], truth) for made, truth in pairs if "high" in made]
    seconds = [made["seconds"] for made, _ in pairs if "seconds" in made]
    return {
        "cases": len(pairs),
        "median": statistics.median(errors),
        "p95": errors[min(len(errors) - 1, int(len(errors) * 0.95))],
        "worst": errors[-1],
        "under": sum(made["peak"] < truth["steady"] for made, truth in pairs) / len(pairs),
        "cap_fails": sum(h < max(t["steady"], t["first"]) for h, t in bars) / len(bars)
        if bars
        else float("nan"),
        "seconds": statistics.median(seconds) if seconds else float("nan"),
    }


def table(results: dict[str, Any]) -> str:
    """The figures, as Markdown."""
    lines = [
        "| threads | models | source | cases | median | 95th | worst | under | fails as a cap |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for threads in (1, 0):
        for part, aside in (("built with", False), ("set aside", True)):
            found = rows(results, threads, aside)
            for source in SOURCES:
                figures = summary(found, source)
                if figures is None:
                    continue
                fails = figures["cap_fails"]
                lines.append(
                    f"| {threads or 'default'} | {part} | {source} | {figures['cases']} | "
                    f"{figures['median']:.1%} | {figures['p95']:.1%} | {figures['worst']:.1%} | "
                    f"{figures['under']:.0%} | {'' if fails != fails else f'{fails:.0%}'} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="every case; hours")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--show", action="store_true", help="only show what was measured")
    parser.add_argument("--plot", type=Path, help="where a scatter plot goes, as SVG")
    options = parser.parse_args()
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if not options.show:
        measure(results, options.full, options.again)
    print(table(results))
    points = [
        (source, each["truth"]["steady"], each[source]["peak"])
        for threads in (1, 0)
        for each in rows(results, threads, None)
        for source in ("line", "traced", "probed")
    ]
    if points and options.plot is not None:
        from scatter import scatter

        options.plot.write_text(scatter(points))


if __name__ == "__main__":
    main()
