"""The largest batch in a capped card, by three finders, on the same models.

    python benchmarks/gpu/largest_torch.py                 ResNet50 and the decoder
    python benchmarks/gpu/largest_torch.py ResNet50

Needs a GPU, PyTorch, Keras, Lightning and Accelerate. Each finder has a process of its own, capped
alike: `legroom.largest_batch`; Accelerate's `find_executable_batch_size`, from 1,024 down;
Lightning's `Tuner.scale_batch_size`, by halves. A try of theirs is two steps, as of legroom's. The
truth is found by trying every size around what they found. Adds to largest_torch.json, beside this
file or in the folder that OUT names.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from capped_torch import keras_model

OUT = Path(os.environ.get("OUT", Path(__file__).parent)) / "largest_torch.json"
FINDERS = ("legroom", "accelerate", "lightning")
FROM = 1024
STEPS = 2


def is_oom(error: BaseException) -> bool:
    """Whether it is PyTorch's word for running out, which Keras may have wrapped."""
    return "out of memory" in str(error).lower() or type(error).__name__ == "OutOfMemoryError"


def find(name: str, finder: str, cap: float) -> dict[str, Any]:
    """What one finder finds, how long it takes, and how often it runs out."""
    import torch

    torch.cuda.set_per_process_memory_fraction(
        cap * 1e9 / torch.cuda.get_device_properties(0).total_memory
    )
    model, inputs, targets = keras_model(name)
    failures = tries = 0

    def steps(samples: int) -> None:
        nonlocal failures, tries
        tries += 1
        try:
            x, y = inputs(samples), targets(samples)
            for _ in range(STEPS):
                model.train_on_batch(x, y)
        except Exception as error:
            failures += is_oom(error)
            raise

    def fits(samples: int) -> bool:
        try:
            steps(samples)
            return True
        except Exception as error:
            if not is_oom(error):
                raise
            return False
        finally:
            gc.collect()
            torch.cuda.empty_cache()

    steps(1)  # CUDA and its libraries are there
    tries = 0
    torch.cuda.synchronize()
    began = time.perf_counter()
    if finder == "legroom":
        import legroom
        from legroom.prediction.sources import Prediction

        once = Prediction.try_size

        def counted(self: Any, *args: Any) -> bool:
            nonlocal failures, tries
            found = once(self, *args)
            tries, failures = tries + 1, failures + (not found)
            return found

        Prediction.try_size = counted  # type: ignore[method-assign]
        # The cap is the card's here: nobody tells legroom.
        found = legroom.largest_batch(model)
    elif finder == "accelerate":
        from accelerate.utils import find_executable_batch_size

        @find_executable_batch_size(starting_batch_size=FROM)
        def search(batch_size: int) -> int:
            steps(batch_size)
            return batch_size

        found = search()
    elif finder == "lightning":
        found = lightning(model, steps)
    else:
        low, high = map(int, finder.split("-"))
        found = next((n for n in range(high, low - 1, -1) if fits(n)), 0)
    return {
        "found": found,
        "seconds": round(time.perf_counter() - began, 2),
        "tries": tries,
        "failures": failures,
    }


def lightning(model: Any, steps: Any) -> int:
    """Lightning's finder around the same steps."""
    import warnings

    import pytorch_lightning
    import torch
    from pytorch_lightning.tuner import Tuner

    warnings.filterwarnings("ignore")

    class Module(pytorch_lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.nothing = torch.nn.Parameter(torch.zeros(1))
            self.automatic_optimization = False

        def train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(range(10**6), self.batch_size)

        def training_step(self, batch: Any, _: int) -> None:
            del batch
            steps(self.batch_size)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([self.nothing], 0.1)

    del model
    trainer = pytorch_lightning.Trainer(
        max_epochs=1, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    # A training step of it is a try of ours, which is two steps.
    return int(
        Tuner(trainer).scale_batch_size(Module(), mode="binsearch", steps_per_trial=1, init_val=2)
        or 0
    )


def main() -> None:
    """Measure models, and keep what was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("models", nargs="*", default=["ResNet50", "gpt2"])
    parser.add_argument("--cap", type=float, default=15.0, help="in GB")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        name, finder, cap = options.child
        print(json.dumps(find(name, finder, float(cap))))
        return
    import torch

    results = json.loads(OUT.read_text()) if OUT.exists() else {}

    def run(name: str, finder: str) -> dict[str, Any]:
        command = [sys.executable, __file__, "--child", name, finder, str(options.cap)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            return {"failed": done.stderr.strip().splitlines()[-1][:300]}
        return json.loads(done.stdout.splitlines()[-1])

    for name in options.models:
        row: dict[str, Any] = {finder: run(name, finder) for finder in FINDERS}
        sizes = [found["found"] for found in row.values() if found.get("found")]
        if sizes:
            row["truth"] = run(name, f"{max(sizes)}-{int(max(sizes) * 1.06) + 2}")
        row |= {
            "card": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "date": str(datetime.date.today()),
        }
        results[f"{name} at {options.cap:g} GB"] = row
        OUT.write_text(json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
