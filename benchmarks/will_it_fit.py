"""The table "Will it fit?": docs/fits.md, from estimates of all models that ship with Keras.

    python benchmarks/will_it_fit.py                       all models, about an hour
    python benchmarks/will_it_fit.py ResNet50 VGG16        these
    python benchmarks/will_it_fit.py --write               only write the page

Estimates are kept in benchmarks/will_it_fit.json, so that the work can be done in parts: what is
there is not asked again unless --again is given.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import inspect
import json
import os
from pathlib import Path
from typing import Any

from accuracy import child

HERE = Path(__file__).parent
KEPT = HERE / "will_it_fit.json"
PAGE = HERE.parent / "docs" / "fits.md"
CARDS = ("rtx3060", "t4", "p100", "l4", "a10", "rtx4090", "a100-40", "a100-80", "h200")
PRECISIONS = ("float32", "mixed_float16")
MOST = 8192
# Slices of so many samples run at 95 % of the speed of a whole batch, by the planner's reckoning.
SLICE = 8
# Measured on a card, for comparison, at this batch size.
ON_CARD = HERE / "gpu" / "xla_needs.json"
COMPARED = 32
ABOUT = """# Will it fit?

The largest batch that models of `keras.applications` train with, by card: at their own input size,
with Adam. First in each cell is the batch that Keras runs whole. With a † it is by what XLA, which
Keras has compile the step on a GPU, takes on a real card ([below](#on-a-card)). The others are
legroom's estimates for a step that is not compiled, with their error bar and by their middle:
compiled, a step usually takes less. Second is the largest batch under legroom that still runs at
about 95 % of the speed, by an estimate: in slices of at least {slice} samples, where the batch
itself is what takes the memory. A dash means that not even one sample is likely to fit. For
another model, size, optimizer or card ask `legroom plan`:

```
legroom plan --app ResNet50 --batch-size 256 --device t4
```

Made by `python benchmarks/will_it_fit.py` on {date}: Keras {keras}, TensorFlow {tensorflow}.
"""


def names() -> list[str]:
    """All models of keras.applications."""
    import keras

    found = vars(keras.applications).items()
    return sorted(
        name for name, made in found
        if inspect.isfunction(made) and "weights" in inspect.signature(made).parameters
    )  # fmt: skip


def ask(name: str, precision: str) -> dict[str, Any]:
    """What fits on each card, of one model in one precision. Run in a process of its own."""
    import keras

    from legroom.backends.base import current
    from legroom.machine.devices import DEVICES
    from legroom.planning.choose import largest_that_fits
    from legroom.planning.slices import Slices
    from legroom.prediction.sources import Prediction

    keras.config.set_dtype_policy(precision)
    model = getattr(keras.applications, name)(weights=None)
    current().models.compile_by_default(model, "adam")
    # Some take pictures of any size: as large as the others' then.
    whole = Prediction(model, source="traced", length=224)
    asked = whole.estimate(SLICE)
    slices = Slices(whole, asked, SLICE + 1, exact=True)
    # Beside the slice lies the rest of the batch: one sample of it is in the figure already.
    each = asked.breakdown["input"] / SLICE
    in_slices = slices.peak(SLICE) - each
    size = [length or 224 for length in model.inputs[0].shape[1:3]]
    at_32 = whole.estimate(COMPARED).peak_bytes
    found: dict[str, Any] = {"input": size, "at_32": at_32, "cards": {}}
    for card in CARDS:
        room = DEVICES[card].usable_bytes
        batch = largest_that_fits(whole.peak, room, MOST)
        likely = largest_that_fits(whole.middle_peak, room, MOST)
        rest = int((room - in_slices) / each) + SLICE
        found["cards"][card] = {
            "surely": batch,
            "likely": max(batch, likely),
            "slices": max(batch, rest) if in_slices <= room else batch,
        }
    return found


def measure(wanted: list[str], again: bool) -> None:
    """Ask about every model that is not there yet, as many at once as there are cores."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    jobs = [
        (name, precision)
        for precision in PRECISIONS
        for name in wanted or names()
        if again or precision not in kept.get(name, {})
    ]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, precision, answer in pool.map(lambda job: asked(*job), jobs):
            if answer is not None:
                kept.setdefault(name, {})[precision] = answer
                KEPT.write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n")
                print(f"  {name:<22}{precision:<14} t4: {answer['cards']['t4']}", flush=True)


def asked(name: str, precision: str) -> tuple[str, str, dict[str, Any] | None]:
    """The answer about one model, from a process of its own; None where it failed."""
    return name, precision, child("will_it_fit.py", "--ask", name, precision)


def page(kept: dict[str, Any]) -> str:
    """The page, as Markdown: a table for each precision."""
    from legroom.core.versions import installed
    from legroom.machine.devices import DEVICES

    keras, tensorflow = [*installed(("keras", "tensorflow-cpu", "tensorflow")).values()][:2]
    parts = [
        ABOUT.format(
            slice=SLICE,
            date=datetime.date.today(),
            keras=keras,
            tensorflow=tensorflow,
        )
    ]
    seen = json.loads(ON_CARD.read_text())["rows"]
    for precision in PRECISIONS:
        titles = [DEVICES[card].title.removeprefix("NVIDIA ") for card in CARDS]
        parts += [
            f"## {precision}\n",
            f"| model | input | {' | '.join(titles)} |",
            "| --- | --- |" + " ---: |" * len(CARDS),
        ]
        for name, answers in sorted(kept.items()):
            if precision in answers:
                found = answers[precision]
                xla = seen.get(f"{name} {precision}")
                cells = " | ".join(_cell(found["cards"][card], card, xla) for card in CARDS)
                size = "×".join(map(str, found["input"]))
                parts.append(f"| {name} | {size} | {cells} |")
        parts.append("")
    return "\n".join([*parts, *_on_card(kept)])


def _on_card(kept: dict[str, Any]) -> list[str]:
    """What XLA took on a real card, beside the estimates."""
    from legroom.machine.devices import DEVICES

    seen = json.loads(ON_CARD.read_text())
    cards = ("t4", "a100-40")
    titles = " | ".join(DEVICES[card].title.removeprefix("NVIDIA ") for card in cards)
    lines = [
        "## On a card\n",
        f"Measured on {seen['date']} on an {seen['card']}, with Keras {seen['keras']} on JAX "
        f"{seen['jax']}: what XLA says that the compiled step takes with {COMPARED} samples; the "
        "peak of a process that compiled and ran it, where that was done (while it compiles, XLA "
        "tries kernels, which may take more than the step does); and the largest whole batch by "
        "XLA's figures in the memory of two cards. To repeat it: "
        "`python benchmarks/gpu/xla_needs.py ResNet50`. The estimate is for a step that is not "
        "compiled. Where it is below XLA's figure, `legroom plan --device` promises too much for a "
        "compiled step.\n",
        f"| model | precision | estimate | by XLA | peak | estimate / XLA | {titles} |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for key, sizes in sorted(seen["rows"].items()):
        name, precision = key.split()
        if precision not in kept.get(name, {}):
            continue
        batches = [f"{_by_xla(sizes, card):,}" for card in cards]
        two = sizes[str(COMPARED)]["bytes"]
        estimate = kept[name][precision]["at_32"]
        ran = sizes[str(COMPARED)].get("ran")
        lines.append(
            f"| {name} | {precision} | {_gb(estimate)} | {_gb(two)} | {_gb(ran) if ran else ''} "
            f"| {estimate / two:.2f} | {' | '.join(batches)} |"
        )
    return [*lines, ""]


def _gb(nbytes: int) -> str:
    return f"{nbytes / 1e9:.2f} GB"


def _cell(found: dict[str, int], card: str, xla: dict[str, Any] | None) -> str:
    surely, likely, slices = (found[name] for name in ("surely", "likely", "slices"))
    if xla is not None:
        surely = likely = _by_xla(xla, card)
    if surely >= MOST:
        return f"over {MOST - 1:,}"
    if not likely:
        return "–"
    whole = f"{surely:,}" if surely == likely else f"{surely:,} to {likely:,}"
    mark = "" if xla is None else "†"
    return f"{whole}{mark} · {slices:,}" if slices > likely else f"{whole}{mark}"


def _by_xla(sizes: dict[str, Any], card: str) -> int:
    """The largest batch on a card: what XLA needs is on a line through two sizes."""
    from legroom.machine.devices import DEVICES

    (small, one), (large, two) = sorted((int(size), row["bytes"]) for size, row in sizes.items())
    each = (two - one) / (large - small)
    return max(0, int((DEVICES[card].usable_bytes - one) / each) + small)


def main() -> None:
    """Ask, and write the page."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--again", action="store_true", help="ask about what is there as well")
    parser.add_argument("--write", action="store_true", help="only write the page")
    parser.add_argument("--ask", nargs=2, metavar=("MODEL", "PRECISION"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask(*options.ask)))
        return
    if not options.write:
        measure(options.models, options.again)
    PAGE.write_text(page(json.loads(KEPT.read_text())))


if __name__ == "__main__":
    main()
