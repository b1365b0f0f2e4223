"""What XLA says that models of keras.applications need on a real card, compiled and not run.

Keras on JAX, whose program can be asked; TensorFlow's step, compiled by XLA, is made of the same
ops. Each model is compiled at two batch sizes: what a program needs beside is on a line.

    python benchmarks/gpu/xla_needs.py ResNet50 VGG16 ...     one process a model, four at a time
    python benchmarks/gpu/xla_needs.py --run ResNet50 float32 32    take steps, and keep the peak

Needs a GPU, JAX and Keras, not TensorFlow. Adds to xla_needs.json, beside this file or in the
folder that OUT names: rows can be measured in parts.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "jax"
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

OUT = Path(os.environ.get("OUT", Path(__file__).parent)) / "xla_needs.json"
SIZES = (16, 32)
AT_ONCE = 4


def build(name: str, precision: str) -> Any:
    """The model, compiled as the estimates take it."""
    import keras

    keras.config.set_dtype_policy(precision)
    model = getattr(keras.applications, name)(weights=None)
    model.compile("adam", "sparse_categorical_crossentropy", jit_compile=True)
    model.optimizer.build(model.trainable_variables)
    return model


def ask(name: str, precision: str) -> dict[str, Any]:
    """The bytes of the compiled step at each size."""
    import jax

    model = build(name, precision)
    shape = input_shape(model)
    model._symbolic_build(data_batch=batch(2, shape))
    state = [
        [value(variable) for variable in group]
        for group in (
            model.trainable_variables,
            model.non_trainable_variables,
            model.optimizer.variables,
            model.metrics_variables,
        )
    ]
    found: dict[str, Any] = {}
    for size in SIZES:
        began = time.monotonic()
        data = [jax.ShapeDtypeStruct(each.shape, each.dtype) for each in batch(size, shape)]
        step = jax.jit(model.train_step, donate_argnums=0)
        made = step.lower(tuple(state), tuple(data)).compile().memory_analysis()
        found[str(size)] = {
            "bytes": made.argument_size_in_bytes
            + made.output_size_in_bytes
            - made.alias_size_in_bytes
            + made.temp_size_in_bytes,
            "temporary": made.temp_size_in_bytes,
            "seconds": round(time.monotonic() - began, 1),
        }
    return found


def input_shape(model: Any) -> tuple[int, ...]:
    """The shape of an image; 224 pixels a side where a model takes any."""
    return tuple(length or 224 for length in model.inputs[0].shape[1:])


def value(variable: Any) -> Any:
    """A variable without its memory."""
    import jax

    return jax.ShapeDtypeStruct(tuple(variable.shape), variable.dtype)


def batch(size: int, shape: tuple[int, ...]) -> tuple[Any, Any]:
    """A batch of zeros."""
    import numpy as np

    return np.zeros((size, *shape), "float32"), np.zeros(size, "int32")


def run(name: str, precision: str, size: int) -> int:
    """The pool's peak of real steps."""
    import jax

    model = build(name, precision)
    x, y = batch(size, input_shape(model))
    for _ in range(3):
        model.train_on_batch(x, y)
    return int(jax.devices()[0].memory_stats()["peak_bytes_in_use"])


def measured(name: str, precision: str) -> tuple[str, str, dict[str, Any] | str]:
    """One model in a process of its own."""
    command = [sys.executable, __file__, "--ask", name, precision]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        return name, precision, (done.stderr.strip().splitlines() or ["no output"])[-1][:300]
    return name, precision, json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Measure, and keep."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*")
    parser.add_argument("--precisions", nargs="*", default=["float32", "mixed_float16"])
    parser.add_argument("--ask", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=3, metavar=("MODEL", "PRECISION", "BATCH"))
    options = parser.parse_args()
    if options.ask:
        print(json.dumps(ask(*options.ask)))
        return
    kept = json.loads(OUT.read_text()) if OUT.exists() else {"rows": {}}
    if options.run:
        name, precision, size = options.run
        peak = run(name, precision, int(size))
        print(f"  {name:<20}{precision:<14}{size} samples: {peak} bytes", flush=True)
        kept["rows"].setdefault(f"{name} {precision}", {}).setdefault(size, {})["ran"] = peak
        keep(kept)
        return
    jobs = [(name, precision) for name in options.models for precision in options.precisions]
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
        for name, precision, found in pool.map(lambda job: measured(*job), jobs):
            print(f"  {name:<20}{precision:<14}{found}", flush=True)
            if isinstance(found, dict):
                kept["rows"][f"{name} {precision}"] = found
                keep(kept)


def keep(found: dict[str, Any]) -> None:
    """Write down what is known, and where it is from."""
    OUT.write_text(json.dumps({**found, **about()}, indent=1, sort_keys=True) + "\n")


def about() -> dict[str, str]:
    """Where and when."""
    import importlib.metadata

    card = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.strip()
    versions = {name: importlib.metadata.version(name) for name in ("jax", "keras")}
    return {"card": card, "date": str(datetime.date.today()), **versions}


if __name__ == "__main__":
    main()
