"""How near estimates come on PyTorch: models at small and larger batches, beside the real thing.

    python benchmarks/torch_accuracy.py                    all models
    python benchmarks/torch_accuracy.py ResNet50 lstm      some of them

Needs Keras and PyTorch, not TensorFlow. Each row is a process of its own, which asks first, then
trains a few steps by `fit`. On a GPU the truth is the allocator's own peak. On a CPU PyTorch keeps
no count, so its profiler notes every allocation. Rows are added to torch_accuracy.json, beside this
file or in the folder that OUT names; one that is measured again replaces its older self.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ["LEGROOM_CACHE"] = "off"
OUT = Path(os.environ.get("OUT", Path(__file__).parent)) / "torch_accuracy.json"
STEPS = 3


def application(name: str, side: int, optimizer: str = "adam") -> Any:
    """A model of keras.applications, for pictures of a size."""

    def make() -> Any:
        import keras

        model = getattr(keras.applications, name)(
            weights=None, input_shape=(side, side, 3), classes=100
        )
        model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make


def vit() -> Any:
    """A small vision transformer, with dropout."""
    import keras
    from keras import layers

    x = given = keras.Input((96, 96, 3))
    x = layers.Reshape((144, 192))(layers.Conv2D(192, 8, 8)(x))
    for _ in range(6):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(6, 32, dropout=0.1)(y, y)])
        y = layers.Dense(768, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dropout(0.1)(layers.Dense(192)(y))])
    model = keras.Model(given, layers.Dense(100)(layers.GlobalAveragePooling1D()(x)))
    model.compile("adamw", keras.losses.SparseCategoricalCrossentropy(True))
    return model


def unet() -> Any:
    """A U-Net for 128×128 pictures."""
    import keras
    from keras import layers

    x = given = keras.Input((128, 128, 3))
    kept = []
    for width in (16, 32, 64):
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
        x = layers.BatchNormalization()(x)
        kept.append(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(128, 3, padding="same", activation="relu")(x)
    for width, skip in zip((64, 32, 16), reversed(kept), strict=True):
        x = layers.Concatenate()([layers.Conv2DTranspose(width, 2, 2)(x), skip])
        x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    model = keras.Model(given, layers.Conv2D(1, 1, activation="sigmoid")(x))
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "binary_crossentropy")
    return model


def recurrent(kind: str) -> Any:
    """An embedding and recurrent layers."""

    def make() -> Any:
        import keras
        from keras import layers

        cell = getattr(layers, kind)
        model = keras.Sequential(
            [keras.Input((64,), dtype="int32"), layers.Embedding(20_000, 128),
             layers.Bidirectional(cell(96, return_sequences=True)), cell(128), layers.Dense(10)]
        )  # fmt: skip
        model.compile("rmsprop", keras.losses.SparseCategoricalCrossentropy(True))
        return model

    return make


def decoder() -> Any:
    """A GPT-like decoder, with its loss over all words."""
    import keras
    from keras import layers

    given = keras.Input((128,), dtype="int32")
    x = layers.Embedding(8000, 256)(given)
    for _ in range(4):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(8, 32)(y, y, use_causal_mask=True)])
        y = layers.Dense(1024, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(256)(y)])
    model = keras.Model(given, layers.Dense(8000)(x))
    model.compile(
        keras.optimizers.AdamW(clipnorm=1.0), keras.losses.SparseCategoricalCrossentropy(True)
    )
    return model


def mlp(optimizer: str) -> Any:
    """Dense layers, whose weights are most of it."""

    def make() -> Any:
        import keras
        from keras import layers

        model = keras.Sequential(
            [keras.Input((512,)), *(layers.Dense(2048, "relu") for _ in range(4)),
             layers.Dropout(0.5), layers.Dense(10)]
        )  # fmt: skip
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(True))
        return model

    return make


def mixed() -> Any:
    """A residual net in half precision."""
    import keras
    from keras import layers

    keras.config.set_dtype_policy("mixed_float16")
    x = given = keras.Input((64, 64, 3))
    x = layers.Conv2D(32, 3, padding="same")(x)
    for _ in range(4):
        y = layers.Conv2D(32, 3, padding="same")(layers.ReLU()(layers.BatchNormalization()(x)))
        x = layers.Add()([x, y])
    model = keras.Model(given, layers.Dense(10, dtype="float32")(layers.Flatten()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    return model


def subclassed() -> Any:
    """A model of the user's own class, with a step of its own."""
    import keras
    import torch
    from keras import layers

    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.body = keras.Sequential(
                [layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(),
                 layers.Conv2D(64, 3, activation="relu"), layers.GlobalAveragePooling2D()]
            )  # fmt: skip
            self.head = layers.Dense(10)

        def call(self, x: Any) -> Any:
            return self.head(self.body(x))

        def train_step(self, data: Any) -> Any:
            x, y = data
            self.zero_grad()
            loss = torch.nn.functional.cross_entropy(self(x), y.long())
            loss.backward()
            weights = list(self.trainable_weights)
            with torch.no_grad():
                self.optimizer.apply([v.value.grad for v in weights], weights)
            return {"loss": loss}

    model = Own()
    model(torch.zeros(1, 64, 64, 3))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(True))
    return model


# How each is made, and the batch sizes; on a GPU these times ten.
MODELS: dict[str, tuple[Any, tuple[int, int]]] = {
    "ResNet50": (application("ResNet50", 96), (4, 24)),
    "MobileNetV2": (application("MobileNetV2", 96), (4, 32)),
    "EfficientNetB0": (application("EfficientNetB0", 96, "sgd"), (4, 24)),
    "VGG16": (application("VGG16", 64, "sgd"), (4, 32)),
    "ConvNeXtTiny": (application("ConvNeXtTiny", 64), (2, 12)),
    "DenseNet121": (application("DenseNet121", 64), (4, 24)),
    "vit": (vit, (4, 32)),
    "unet": (unet, (2, 16)),
    "lstm": (recurrent("LSTM"), (8, 64)),
    "gru": (recurrent("GRU"), (8, 64)),
    "decoder": (decoder, (2, 12)),
    "mlp_adam": (mlp("adam"), (16, 512)),
    "mlp_sgd": (mlp("sgd"), (16, 512)),
    "mixed": (mixed, (4, 32)),
    "subclassed": (subclassed, (4, 32)),
}


def data_for(model: Any, samples: int) -> tuple[Any, Any]:
    """Batches of zeros, as many as there are steps."""
    import numpy as np

    from legroom.backends.torch.forecast.keras_step import batch_specs

    x, y = next(batch_specs(model, "fit", None, None))
    return tuple(np.zeros((STEPS * samples, *spec.shape[1:]), spec.dtype) for spec in (x, y))  # type: ignore[return-value]


def measured(model: Any, samples: int) -> int:
    """The peak of a few steps of `fit`."""
    import torch

    x, y = data_for(model, samples)

    def train() -> None:
        model.fit(x, y, batch_size=samples, epochs=1, shuffle=False, verbose=0)

    if torch.cuda.is_available():
        train()
        return int(torch.cuda.max_memory_allocated())
    from torch.profiler import ProfilerActivity, profile

    # A batch is memory of NumPy's, which PyTorch uses as it is.
    held = sum(v.value.nbytes for v in model.variables) + (x.nbytes + y.nbytes) // STEPS
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        train()
    events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = most = held
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    return most


def child(name: str, samples: int) -> dict[str, Any]:
    """One row."""
    import torch

    import legroom

    model = MODELS[name][0]()
    began, used = time.perf_counter(), time.process_time()
    made = legroom.estimate(model, samples)
    seconds, used = time.perf_counter() - began, time.process_time() - used
    truth = measured(model, samples)
    most = max(made.peak_bytes, made.first_step_bytes)
    return {
        "estimate_bytes": most,
        "measured_bytes": truth,
        "off": round(most / truth - 1, 5),
        "inside": made.low_bytes <= truth <= max(made.high_bytes, made.first_step_bytes),
        "seconds": round(seconds, 2),
        "cpu_seconds": round(used, 2),  # where others use the machine, the better figure
        "layer": made.layers[0][0] if made.layers else "",
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU",
        "torch": torch.__version__,
        "date": str(datetime.date.today()),
    }


def main() -> None:
    """Measure rows, and keep them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    parser.add_argument("--child", nargs=2)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(child(options.child[0], int(options.child[1]))))
        return
    import torch

    times = 10 if torch.cuda.is_available() else 1
    results = json.loads(OUT.read_text()) if OUT.exists() else {}
    shown = []
    for name in options.models or MODELS:
        for samples in MODELS[name][1]:
            command = [sys.executable, __file__, "--child", name, str(samples * times)]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                print(name, samples, "failed:", done.stderr.strip().splitlines()[-1][:200])
                continue
            row = json.loads(done.stdout.splitlines()[-1])
            results[f"{name} {samples * times} on {row['device']}"] = row
            OUT.write_text(json.dumps(results, indent=1) + "\n")
            shown.append(row)
            print(
                f"{name:16} {samples * times:5}  {row['measured_bytes'] / 1e6:9.1f} MB  "
                f"{row['off']:+8.2%}  {'' if row['inside'] else 'OUTSIDE'}  {row['seconds']} s "
                f"({row['cpu_seconds']} s CPU)",
                flush=True,
            )
    if shown:
        off = [abs(row["off"]) for row in shown]
        print(f"median {statistics.median(off):.2%}, worst {max(off):.2%} of {len(off)} rows")


if __name__ == "__main__":
    main()
