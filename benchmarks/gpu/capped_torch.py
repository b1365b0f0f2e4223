"""PyTorch on a real card, capped: batches that need three times the cap, plain and under legroom.

    python benchmarks/gpu/capped_torch.py ResNet50 gpt2_plain ...     these rows; all without names
    python benchmarks/gpu/capped_torch.py --cap 40 unet

Needs a GPU, PyTorch and, for some rows, Keras; not TensorFlow. Each row is a few processes: plain
without the cap, plain with it (which fails), guarded without the cap, guarded with it, and slices
of fixed sizes, to see what the best one would have been. Adds to capped_torch.json, beside this
file or in the folder that OUT names.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
OUT = Path(os.environ.get("OUT", Path(__file__).parent)) / "capped_torch.json"
KERAS_ROWS = ("ResNet50", "vit", "unet", "lstm", "gpt2")
PLAIN_ROWS = ("gpt2_plain", "unet_plain")
STEPS = 10
RATE = 1e-3


def keras_model(name: str) -> tuple[Any, Any, Any]:
    """A compiled model, and functions that make its inputs and targets."""
    import keras
    import torch
    from keras import layers

    def pictures(side: int) -> Any:
        return lambda n: torch.rand(n, side, side, 3)

    if name == "ResNet50":
        model = keras.applications.ResNet50(weights=None, classes=1000)
        for layer in model.layers:
            if isinstance(layer, layers.BatchNormalization):
                layer.trainable = False  # in training it mixes the samples of a batch
        made = model, pictures(224), lambda n: torch.randint(0, 1000, (n,))
        loss: Any = "sparse_categorical_crossentropy"
    elif name == "vit":
        x = given = keras.Input((224, 224, 3))
        x = layers.Reshape((196, 768))(layers.Conv2D(768, 16, 16)(x))
        for _ in range(12):
            y = layers.LayerNormalization()(x)
            x = layers.Add()([x, layers.MultiHeadAttention(12, 64)(y, y)])
            y = layers.Dense(3072, "gelu")(layers.LayerNormalization()(x))
            x = layers.Add()([x, layers.Dense(768)(y)])
        x = layers.Dense(1000)(layers.GlobalAveragePooling1D()(x))
        made = keras.Model(given, x), pictures(224), lambda n: torch.randint(0, 1000, (n,))
        loss = keras.losses.SparseCategoricalCrossentropy(True)
    elif name == "unet":
        x = given = keras.Input((256, 256, 3))
        kept = []
        for width in (64, 128, 256, 512):
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
            kept.append(x)
            x = layers.MaxPooling2D()(x)
        x = layers.Conv2D(1024, 3, padding="same", activation="relu")(x)
        for width, skip in zip((512, 256, 128, 64), reversed(kept), strict=True):
            x = layers.Concatenate()([layers.UpSampling2D()(x), skip])
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
            x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        made = keras.Model(given, layers.Conv2D(1, 1)(x)), pictures(256), lambda n: torch.rand(
            n, 256, 256, 1
        )  # fmt: skip
        loss = "mse"
    elif name == "lstm":
        model = keras.Sequential(
            [keras.Input((128,), dtype="int32"), layers.Embedding(50_000, 256),
             layers.LSTM(512, return_sequences=True), layers.LSTM(512), layers.Dense(10)]
        )  # fmt: skip
        made = (
            model, lambda n: torch.randint(0, 50_000, (n, 128)),
            lambda n: torch.randint(0, 10, (n,)),
        )  # fmt: skip
        loss = keras.losses.SparseCategoricalCrossentropy(True)
    else:
        given = keras.Input((1024,), dtype="int32")
        x = layers.Embedding(50_257, 768)(given)
        for _ in range(12):
            y = layers.LayerNormalization()(x)
            x = layers.Add()([x, layers.MultiHeadAttention(12, 64)(y, y, use_causal_mask=True)])
            y = layers.Dense(3072, "gelu")(layers.LayerNormalization()(x))
            x = layers.Add()([x, layers.Dense(768)(y)])
        words = lambda n: torch.randint(0, 50_257, (n, 1024))  # noqa: E731
        made = keras.Model(given, layers.Dense(50_257)(x)), words, words
        loss = keras.losses.SparseCategoricalCrossentropy(True)
    made[0].compile(keras.optimizers.SGD(RATE), loss, jit_compile=False)
    return made


def plain_step(name: str) -> tuple[Any, Any, Any, Any]:
    """A model, a step as people write it, and functions that make its inputs and targets."""
    import torch
    from torch import nn
    from torch.nn import functional

    if name == "gpt2_plain":

        class Decoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.words = nn.Embedding(50_257, 768)
                block = nn.TransformerEncoderLayer(
                    768, 12, 3072, 0.0, "gelu", batch_first=True, norm_first=True
                )
                self.blocks = nn.TransformerEncoder(block, 12, enable_nested_tensor=False)
                self.out = nn.Linear(768, 50_257)

            def forward(self, x: Any) -> Any:
                mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1], x.device)
                return self.out(self.blocks(self.words(x), mask=mask, is_causal=True))

        model: Any = Decoder()
        words = lambda n: torch.randint(0, 50_257, (n, 1024))  # noqa: E731
        inputs, targets = words, words

        def loss_of(made: Any, y: Any) -> Any:
            return functional.cross_entropy(made.flatten(0, 1), y.flatten())

    else:
        width = 64
        model = nn.Sequential(
            *(
                layer
                for i in range(8)
                for layer in (
                    nn.Conv2d(3 if i == 0 else width, width, 3, padding=1),
                    nn.GroupNorm(8, width),
                    nn.ReLU(),
                )
            ),
            nn.Conv2d(width, 1, 1),
        )
        inputs = lambda n: torch.rand(n, 3, 256, 256)  # noqa: E731
        targets = lambda n: torch.rand(n, 1, 256, 256)  # noqa: E731
        loss_of = functional.mse_loss
    model.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step(x: Any, y: Any) -> Any:
        x, y = x.cuda(), y.cuda()
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, step, inputs, targets


def child(name: str, mode: str, samples: int, cap: float, kept: str) -> dict[str, Any]:
    """Train a few steps in one way, and tell how it went."""
    import torch

    import legroom

    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
    if mode not in ("uncapped", "size", "guarded_uncapped"):
        torch.cuda.set_per_process_memory_fraction(
            cap * 1e9 / torch.cuda.get_device_properties(0).total_memory
        )
    torch.manual_seed(0)
    events: list[Any] = []
    if name in KERAS_ROWS:
        import keras

        keras.utils.set_random_seed(0)
        model, inputs, targets = keras_model(name)
        step = model.train_on_batch
    else:
        model, plain, inputs, targets = plain_step(name)
        step = plain

    def guard(**options: Any) -> Any:
        if name in KERAS_ROWS:
            legroom.guard(model, **options)
            return model.train_on_batch
        return legroom.step(**options)(plain) if options else legroom.step(plain)

    if mode.startswith("guarded"):
        step = guard()
    if mode.startswith("fixed:"):
        return {
            size: _time_of(guard(slice_size=int(size)), inputs(samples), targets(samples))
            for size in mode.partition(":")[2].split(",")
        }
    if mode == "size":
        peaks = []
        for n in (2, 6):
            torch.cuda.reset_peak_memory_stats()
            step(inputs(n), targets(n))
            peaks.append(torch.cuda.max_memory_allocated())
        each = (peaks[1] - peaks[0]) / 4
        return {"samples": int((3.1 * cap * 1e9 - peaks[0]) / each) + 2, "bytes_each": int(each)}
    torch.manual_seed(1)
    seconds, losses = [], []
    from legroom.core.events import listening

    with listening(events.append):
        for _ in range(STEPS):
            x, y = inputs(samples), targets(samples)
            torch.cuda.synchronize()
            began = time.perf_counter()
            losses.append(float(_first(step(x, y))))
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    weights = {k: v.float().cpu() for k, v in model.state_dict().items()}
    torch.save(weights, f"{kept}.{mode.replace(':', '-')}.pt")
    plans = [event for event in events if event.name == "plan"]
    return {
        "losses": losses,
        "seconds": sorted(seconds[-3:])[1],  # of the last three: by then the slices are found
        "course": [
            f"{e.name} {e.data.get('slice_size')}" for e in events if e.name in ("oom", "plan")
        ],
        "first_seconds": seconds[0],
        "peak_bytes": torch.cuda.max_memory_allocated(),  # the guard resets it
        # What the allocator had taken of the card at the end.
        "reserved_bytes": torch.cuda.memory_reserved(),
        "retries": torch.cuda.memory_stats()["num_alloc_retries"],
        "ooms": sum(event.name == "oom" for event in events),
        "slice": plans[-1].data["slice_size"] if plans else None,
    }


def _time_of(step: Any, x: Any, y: Any) -> float | None:
    """The time of a step by slices of one size; None where it runs out."""
    import gc

    import torch

    seconds = []
    try:
        for _ in range(5):
            torch.cuda.synchronize()
            began = time.perf_counter()
            step(x, y)
            torch.cuda.synchronize()
            seconds.append(time.perf_counter() - began)
    except Exception:
        return None
    finally:
        gc.collect()
        torch.cuda.empty_cache()
    return sorted(seconds[-3:])[1]


def _first(made: Any) -> Any:
    while isinstance(made, (list, tuple)):
        made = made[0]
    return made


def row(name: str, cap: float, fixed: bool) -> dict[str, Any]:
    """All ways of one row."""
    kept = f"/tmp/legroom_{name}"

    def run(mode: str, samples: int = 0) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", name, mode, str(samples), str(cap), kept]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            lines = [
                x for x in done.stderr.splitlines() if "Error" in x
            ] or done.stderr.splitlines()
            return {"failed": lines[-1][:300] if lines else "no output"}
        return json.loads(done.stdout.splitlines()[-1])

    samples = run("size").get("samples")
    if not samples:
        return {"failed": "no size"}
    found: dict[str, Any] = {"samples": samples, "cap_bytes": int(cap * 1e9)}
    for mode in ("uncapped", "capped", "guarded_uncapped", "guarded"):
        found[mode] = run(mode, samples)
        print(name, mode, found[mode], flush=True)
    chosen = found["guarded"].get("slice")
    if chosen and fixed:
        sizes = sorted({max(1, int(chosen * f)) for f in (0.25, 0.5, 0.65, 0.8, 1.0, 1.2, 1.4)})
        found["fixed"] = run(f"fixed:{','.join(map(str, sizes))}", samples)
        print(name, "fixed", found["fixed"], flush=True)
    import torch

    paths = [Path(f"{kept}.{mode}.pt") for mode in ("uncapped", "guarded")]
    if all(path.exists() for path in paths):
        one, other = (torch.load(path) for path in paths)
        found["weights_apart"] = max(
            float((one[k] - other[k]).abs().max() / one[k].abs().max().clamp_min(1e-3)) for k in one
        )
    return found


def main() -> None:
    """Measure rows, and keep them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("rows", nargs="*")
    parser.add_argument("--cap", type=float, default=15.0, help="in GB")
    parser.add_argument("--quick", action="store_true", help="without the fixed slice sizes")
    parser.add_argument("--child", nargs=5)
    options = parser.parse_args()
    if options.child:
        name, mode, samples, cap, kept = options.child
        print(json.dumps(child(name, mode, int(samples), float(cap), kept)))
        return
    import torch

    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    for name in options.rows or (*KERAS_ROWS, *PLAIN_ROWS):
        began = time.perf_counter()
        found = row(name, options.cap, not options.quick)
        found |= {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "date": str(datetime.date.today()),
            "took_seconds": round(time.perf_counter() - began, 1),
        }
        results[f"{name} at {options.cap:g} GB"] = found
        OUT.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(found)[:600], flush=True)


if __name__ == "__main__":
    main()
