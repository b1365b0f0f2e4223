"""What running ops in order saves and costs, and how near its prediction comes.

    python benchmarks/order.py                        five models
    python benchmarks/order.py unet:16 mixer:64       others of the zoo, with batch sizes

Peaks are those of eight steady steps, each way in a fresh process; times are taken in turns in one
process, with and without oneDNN. Writes benchmarks/results/order.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from accuracy import child

RESULTS = Path(__file__).parent / "results" / "order.json"
MODELS = ("unet:16", "autoencoder:48", "transformer:32", "small_cnn:64", "wavenet:64")


def measure(name: str, batch: str) -> dict[str, Any]:
    """All figures of one model; None where a child failed."""
    found: dict[str, Any] = {
        what: child("order_child.py", name, batch, what)
        for what in ("plain", "guarded", "ordered", "predict", "times")
    }
    found["times with oneDNN"] = child("order_child.py", name, batch, "times", "--onednn")
    return found


def told(seen: dict[str, Any]) -> str:
    """One model in a few lines."""
    lines = []
    for way in ("plain", "guarded", "ordered"):
        peaks = (seen[way] or {}).get("peaks") or [0]
        lines.append(f"{way:<10}{min(peaks) / 1e6:7.1f} to {max(peaks) / 1e6:7.1f} MB")
    for what, made in (seen["predict"] or {}).items():
        lines.append(f"{what:<16}{made['peak'] / 1e6:7.1f}, up to {made['high'] / 1e6:.1f} MB")
    for what in ("times", "times with oneDNN"):
        if seen[what]:
            ratio, low, high, best = (seen[what][k] for k in ("ratio", "low", "high", "quickest"))
            lines.append(f"{what}: {ratio:.3f} ({low:.3f} to {high:.3f}) of the step as it is, "
                         f"{best:.3f} by the quickest rounds")  # fmt: skip
    return "\n".join(f"  {line}" for line in lines)


def main() -> None:
    """Measure, and print."""
    found = {}
    for case in sys.argv[1:] or MODELS:
        name, batch = case.split(":")
        found[case] = measure(name, batch)
        print(f"{name}, batch {batch}\n{told(found[case])}", flush=True)
        RESULTS.parent.mkdir(exist_ok=True)
        RESULTS.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
