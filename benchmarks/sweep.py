"""Trainings of mixed size: in a loop, and as sweeps. `loop|sweep WORKERS FOLDER SAMPLES [COUNT]`.

Each training computes with one thread, whatever runs it. Prints the seconds that all of them took,
those that were computed, and what came out.
"""

import json
import os
import resource
import sys
import time

THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
os.environ.update(dict.fromkeys(THREADS, "1"))
MEMORY = "2GiB"
# From 25 MB to about a gigabyte, shuffled; in equal numbers, each with rates of its own.
BATCHES = (16, 256, 64, 512, 32, 128, 24, 640)


def configs(samples: int, count: int) -> list[dict[str, float]]:
    """What they are trained with."""
    return [
        {"batch": BATCHES[number % len(BATCHES)], "samples": samples, "rate": 1e-3 * (1 + number)}
        for number in range(count)
    ]


def train(config: dict[str, float]) -> float:
    """Train a small convolutional net; returns its last loss."""
    import keras
    import numpy as np

    keras.utils.set_random_seed(1)
    batch = int(config["batch"])
    count = -(-int(config["samples"]) // batch) * batch
    numbers = np.random.default_rng(batch)
    x = numbers.normal(size=(count, 64, 64, 3)).astype("float32")
    y = numbers.integers(0, 10, count)
    model = keras.Sequential(
        [
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(10),
        ]
    )
    model.compile(
        keras.optimizers.SGD(config["rate"]),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    return float(model.fit(x, y, batch_size=batch, epochs=1, verbose=0).history["loss"][-1])


if __name__ == "__main__":
    how, workers, folder, samples = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    wanted = configs(samples, int(sys.argv[5]) if len(sys.argv) > 5 else 40)
    began = time.monotonic()
    told: dict[str, object] = {}
    if how == "loop":
        losses = [train(config) for config in wanted]
    else:
        import legroom

        trials = legroom.sweep(train, wanted, memory=MEMORY, workers=workers, folder=folder)
        losses = [trial.result for trial in trials]
        told = {
            "statuses": sorted({trial.status for trial in trials}),
            "starts": sum(trial.starts for trial in trials),
            "peaks": [trial.peak_bytes for trial in trials],
        }
    usages = [resource.getrusage(w) for w in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    computed = sum(usage.ru_utime + usage.ru_stime for usage in usages)
    seconds = time.monotonic() - began
    print(json.dumps({"seconds": seconds, "computed": computed, "losses": losses, **told}))
