"""How near estimates come to the truth, over the zoo.

    python benchmarks/accuracy.py            a short form, under ten minutes on two idle cores
    python benchmarks/accuracy.py --full     every model, optimizer and precision: hours
    python benchmarks/accuracy.py --full --way adam     those of one optimizer

The truth is the allocator's own peak of a training in a fresh process. Models set aside while the
predictions were built are reported apart. "Beyond the spread" is the worst error where any figure
that the training itself was seen to take counts as right: where a probe is off, it is run again.
Writes benchmarks/results/accuracy.json or, of the full form, benchmarks/accuracy.json. Both grow
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
RESULTS = {False: HERE / "results" / "accuracy.json", True: HERE / "accuracy.json"}
# Half precision is bfloat16 on a CPU: float16 is emulated there, in float32 copies.
WAYS = (("adam", "float32"), ("momentum", "float32"), ("adamw", "mixed_bfloat16"))
QUIET = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
SHORT = ("small_cnn", "transformer", "lstm", "two_towers", "vit", "autoencoder")
SOURCES = ("compiled", "probed", "traced", "line", "grappler")
# How a step is run: on one thread, on as many as TensorFlow takes, or compiled by XLA.
MODES = {"1": ["--threads", 1], "default": [], "XLA": ["--compiled"]}
FOR_XLA = ("small_cnn", "lstm", "mixer")
# One and the same program does not always peak at the same height. Where a probe is off by more
# than this, the training is run so many times more, to see how far it goes by itself.
_LOOK_AGAIN = 0.06
_TIMES = 4


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


def cases(full: bool, wanted: str | None = None) -> list[tuple[str, str, str, str]]:
    """Model, optimizer, precision and mode of each case."""
    from zoo_names import LARGEST, NAMES

    if not full:
        made = [(name, ("adam", "sgd")[i % 2], "float32") for i, name in enumerate(SHORT)]
    else:
        # Every model in one way before the next: a run that is cut short has seen all of them.
        made = [(name, *way) for way in WAYS for name in NAMES if name not in LARGEST]
        made += [(name, "momentum", "float32") for name in LARGEST]
    compiled = [name for name in NAMES if name not in LARGEST] if full else FOR_XLA
    found = [
        *((*case, mode) for case in made for mode in ("1", "default")),
        *((name, "adam", "float32", "XLA") for name in compiled),
    ]
    return [case for case in found if wanted in (None, case[1] if case[3] != "XLA" else "XLA")]


def measure(results: dict[str, Any], full: bool, again: bool, wanted: str | None = None) -> None:
    """Estimates and truths of every case that is not there yet."""
    from zoo_names import NAMES

    kept = RESULTS[full]
    for name, optimizer, precision, mode in cases(full, wanted):
        key = f"{name} {optimizer} {precision} {mode}"
        if key in results and not again:
            continue
        sizes = NAMES[name]
        made = child(
            "accuracy_estimates.py", name, optimizer, precision, ",".join(map(str, sizes)),
            *MODES[mode], *(["--grappler"] if mode == "1" else []),
        )  # fmt: skip
        if made is None:
            continue
        for size in sizes:
            compare(made[str(size)], key, size)
        results[key] = made
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(results, indent=1) + "\n")


def compare(found: dict[str, Any], key: str, size: int) -> None:
    """Add the truth to the estimates of one size."""
    name, optimizer, precision, mode = key.split()

    def run() -> dict[str, Any] | None:
        return child("accuracy_child.py", name, optimizer, precision, size, *MODES[mode])

    truth = found["truth"] = run()
    if not truth:
        return
    errors = {
        source: found[source]["peak"] / truth["steady"] - 1
        for source in ("compiled", "probed", "traced")
        if source in found
    }
    if abs(errors.get("probed", 0.0)) > _LOOK_AGAIN:
        found["others"] = [other["steady"] for _ in range(_TIMES) if (other := run())]
    seen = _taken(found)
    spread = f"  ({min(seen) / 1e6:.1f} to {max(seen) / 1e6:.1f})" if "others" in found else ""
    told = "".join(f"  {source} {error:+6.1%}" for source, error in errors.items())
    print(f"  {key:<40}{size:>5}  {seen[0] / 1e6:8.1f} MB{told}{spread}", flush=True)


def rows(results: dict[str, Any], mode: str | None, aside: bool | None) -> list[dict[str, Any]]:
    """The measured cases of one mode or of all, of one part of the zoo or of both."""
    from zoo_names import SET_ASIDE

    found = []
    for key, sizes in results.items():
        name, _, _, used = key.split()
        if mode in (None, used) and aside in (None, name in SET_ASIDE):
            found += [each for each in sizes.values() if each.get("truth")]
    return found


def summary(found: list[dict[str, Any]], source: str) -> dict[str, float] | None:
    """The errors of a source."""
    found = [each for each in found if each.get(source, {}).get("peak")]
    pairs = [(each[source], each["truth"]) for each in found]
    if not pairs:
        return None
    errors = sorted(abs(made["peak"] / truth["steady"] - 1) for made, truth in pairs)
    beyond = [_beyond(each[source]["peak"], each) for each in found]
    bars = [(made["high"], truth) for made, truth in pairs if "high" in made]
    seconds = [made["seconds"] for made, _ in pairs if "seconds" in made]
    return {
        "cases": len(pairs),
        "median": statistics.median(errors),
        "p95": errors[min(len(errors) - 1, int(len(errors) * 0.95))],
        "worst": errors[-1],
        "beyond": max(beyond),
        "under": sum(made["peak"] < truth["steady"] for made, truth in pairs) / len(pairs),
        "cap_fails": sum(h < max(t["steady"], t["first"]) for h, t in bars) / len(bars)
        if bars
        else float("nan"),
        "seconds": statistics.median(seconds) if seconds else float("nan"),
    }


def _taken(case: dict[str, Any]) -> list[int]:
    """What the training itself was seen to take, the first time and, where it was, again."""
    return [case["truth"]["steady"], *case.get("others", [])]


def _beyond(peak: int, case: dict[str, Any]) -> float:
    """How far a figure is from all that the training itself was seen to take."""
    seen = _taken(case)
    return max(0.0, 1 - peak / min(seen), peak / max(seen) - 1)


def table(results: dict[str, Any]) -> str:
    """The figures, as Markdown."""
    lines = [
        "| threads | models | source | cases | median | 95th | worst | beyond the spread | under "
        "| fails as a cap |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode in MODES:
        for part, aside in (("built with", False), ("set aside", True)):
            found = rows(results, mode, aside)
            for source in SOURCES:
                figures = summary(found, source)
                if figures is None:
                    continue
                fails = figures["cap_fails"]
                lines.append(
                    f"| {mode} | {part} | {source} | {figures['cases']} | "
                    f"{figures['median']:.1%} | {figures['p95']:.1%} | {figures['worst']:.1%} | "
                    f"{figures['beyond']:.1%} | {figures['under']:.0%} | "
                    f"{'' if fails != fails else f'{fails:.0%}'} |"
                )
    return "\n".join(lines)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="every case; hours")
    parser.add_argument("--way", help="of the full form: adam, momentum, adamw or XLA")
    parser.add_argument("--again", action="store_true", help="measure anew what is there")
    parser.add_argument("--show", action="store_true", help="only show what was measured")
    parser.add_argument("--plot", type=Path, help="where a scatter plot goes, as SVG")
    options = parser.parse_args()
    kept = RESULTS[options.full]
    results = json.loads(kept.read_text()) if kept.exists() else {}
    if not options.show:
        measure(results, options.full, options.again, options.way)
    print(table(results))
    points = [
        (source, each["truth"]["steady"], each[source]["peak"])
        for each in rows(results, None, None)
        for source in ("line", "traced", "probed", "compiled")
        if each.get(source)
    ]
    if points and options.plot is not None:
        from scatter import scatter

        options.plot.write_text(scatter(points))


if __name__ == "__main__":
    main()
