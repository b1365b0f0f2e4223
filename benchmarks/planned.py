"""Planned training under a cap, over the zoo: does it run out, and is it as fast as can be?

    python benchmarks/planned.py             a short form: four models at half of their plain peak
    python benchmarks/planned.py --full      every model at 30, 50 and 70 %: hours

Each training begins with `legroom.plan` for the cap, and is compared with every fixed slice size in
the same process. Writes benchmarks/results/planned.json.
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


def measure(full: bool) -> dict[str, dict[str, Any]]:
    """Every case."""
    found: dict[str, dict[str, Any]] = {}
    for name in NAMES if full else SHORT:
        batch = NAMES[name][-1]
        plain = child("accuracy_child.py", name, "adam", "float32", batch)
        if plain is None:
            continue
        for share in SHARES if full else (0.5,):
            limit = max(32 * 2**20, int(share * max(plain["first"], plain["steady"])))
            seen = child("planned_child.py", name, batch, "--limit", limit, "--fixed")
            if seen is None:
                continue
            key = f"{name} {batch} {share:.0%}"
            found[key] = seen
            print(f"  {key:<28}{told(seen)}", flush=True)
            RESULTS.parent.mkdir(exist_ok=True)
            RESULTS.write_text(json.dumps(found, indent=1))
    return found


def told(seen: dict[str, Any]) -> str:
    """One case in a line."""
    if not seen["fits"]:
        return "does not fit, even one sample at a time"
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
    found = [each for each in measure(parser.parse_args().full).values() if each["fits"]]
    ratios = [over for each in found if (over := over_best(each)) is not None]
    without = sum(not each["ooms"] for each in found)
    print(f"  without an out-of-memory error: {without} of {len(found)} (target 95 %)")
    if ratios:
        print(f"  time over the best fixed size: median {statistics.median(ratios):.2f}, worst "
              f"{max(ratios):.2f} (target 1.10)")  # fmt: skip


if __name__ == "__main__":
    main()
