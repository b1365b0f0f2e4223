"""Planned training under a cap, over the zoo: does it run out, and is it as fast as can be?

    python benchmarks/planned.py             a short form: four models at half of their plain peak
    python benchmarks/planned.py --full      every model at 30, 50 and 70 %: hours
    python benchmarks/planned.py --full --quick    without the fixed sizes to compare with

Each training begins with `legroom.plan` for the cap. It is compared with slices of all powers of
two up to the batch, each in a process of its own, of which those that make more than 64 slices
are left out. Where the plan says that nothing fits, slices of one sample are tried. Writes
benchmarks/results/planned.json, where a case that was measured stays unless --again is given.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from accuracy import child
from zoo_names import NAMES

RESULTS = Path(__file__).parent / "results" / "planned.json"
SHORT = ("small_cnn", "lstm", "transformer", "norm_cnn")
SHARES = (0.3, 0.5, 0.7)
MOST_SLICES = 64


def measure(found: dict[str, dict[str, Any]], *, full: bool, quick: bool) -> None:
    """Every case that is not there yet."""
    for name in NAMES if full else SHORT:
        batch = NAMES[name][-1]
        wanted = {f"{name} {batch} {share:.0%}": share for share in (SHARES if full else (0.5,))}
        if all(key in found for key in wanted):
            continue
        plain = child("accuracy_child.py", name, "adam", "float32", batch)
        if plain is None:
            continue
        for key, share in wanted.items():
            if key in found:
                continue
            limit = max(32 * 2**20, int(share * max(plain["first"], plain["steady"])))
            seen = one_case(name, batch, limit, quick=quick)
            if seen is None:
                continue
            found[key] = seen
            print(f"  {key:<28}{told(seen)}", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found, indent=1))


def one_case(name: str, batch: int, limit: int, *, quick: bool) -> dict[str, Any] | None:
    """The planned training, and what it is compared with."""

    def run(*more: object) -> dict[str, Any] | None:
        return child("planned_child.py", name, batch, "--limit", limit, *more)

    seen = run()
    if seen is None:
        return None
    if not seen["fits"]:
        one = run("--slice-size", 1, "--epochs", 1) if "way" not in seen else None
        return seen | {"one_fits": bool(one and one["fits"])}
    if not quick:
        seen["fixed"] = {}
        size = 1
        while size < 2 * batch:
            used = min(size, batch)
            size *= 2
            if -(-batch // used) > MOST_SLICES:
                continue
            fixed = run("--slice-size", used)
            if fixed is None or not fixed["fits"]:
                break
            seen["fixed"][used] = fixed["step"]
    return seen


def told(seen: dict[str, Any]) -> str:
    """One case in a line."""
    if not seen["fits"]:
        return "refused, but fits" if seen["one_fits"] else "does not fit, one sample neither"
    times = f"{seen['step'] * 1000:.0f} ms a step"
    over = over_best(seen)
    if over is not None:
        times += f", {over:.2f} of the best fixed size"
    return f"{seen['ooms']} out of memory, {seen['way']}, {times}"


def over_best(seen: dict[str, Any]) -> float | None:
    """The time of a step over that with the best fixed size; None where none was tried."""
    fixed = seen.get("fixed") or {}
    return seen["step"] / min(fixed.values()) if fixed else None


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="every model and cap; hours")
    parser.add_argument("--quick", action="store_true", help="no fixed sizes to compare with")
    parser.add_argument("--again", action="store_true", help="measure what was measured before")
    options = parser.parse_args()
    kept = RESULTS.exists() and not options.again
    found: dict[str, dict[str, Any]] = json.loads(RESULTS.read_text()) if kept else {}
    measure(found, full=options.full, quick=options.quick)
    possible = [each for each in found.values() if each["fits"] or each["one_fits"]]
    ratios = [over for each in possible if (over := over_best(each)) is not None]
    without = sum(each["fits"] and not each["ooms"] for each in possible)
    print(f"  {len(found)} cases, in {len(found) - len(possible)} of which one sample does not fit")
    print(f"  without an out-of-memory error: {without} of {len(possible)} (target 95 %)")
    if ratios:
        within = sum(ratio <= 1.1 for ratio in ratios)
        print(f"  time over the best fixed size: median {statistics.median(ratios):.2f}, worst "
              f"{max(ratios):.2f}, within 1.10 in {within} of {len(ratios)}")  # fmt: skip


if __name__ == "__main__":
    main()
