"""Run the suites in an environment for each supported pair of TensorFlow and Keras.

Called by `make test-versions`. Needs nothing but Python and pip; the environments are made once,
in .venvs, and made again when what goes into them has changed.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# What a user meets on any version: the same weights, steps that happen wholly or not at all,
# trainings that resume, whole scripts. In the order of what takes longest.
SUITES = [
    "tests/contract",
    "tests/faults/test_atomic_step.py",
    "tests/integration/test_resume.py",
    "tests/integration/test_run_process.py",
    "tests/integration/test_scripts.py",
    "tests/versions/test_data_ends.py",
    "tests/versions/test_keras_parts.py",
]
# What holds on the oldest pair and on the newest, that of `make test`, holds between them.
OLDEST = [
    "tests/integration/test_examples.py",
    "tests/faults/test_killed.py",
    "tests/integration/test_capped.py",
]
TOOLS = ["hypothesis", "pyarrow", "pytest", "pytest-xdist"]
# What constraints.txt says of these holds everywhere; an old TensorFlow needs its own numpy,
# protobuf and so on.
PINNED = {*TOOLS, "cloudpickle", "hatchling", "jinja2", "pip", "psutil", "rich", "click"}


def read_pairs() -> dict[str, tuple[str, str]]:
    lines = (HERE / "pairs.txt").read_text().splitlines()
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    return {name: (tensorflow, keras) for name, tensorflow, keras in rows}


def environment(name: str, versions: tuple[str, str], package: str) -> Path:
    """The Python of a pair's environment, made if it is not there."""
    folder = ROOT / ".venvs" / name
    python, ready = folder / "bin" / "python", folder / ".legroom-ready"
    # TensorBoard in the version of TensorFlow, which brought it along until 2.20: `tf.summary`.
    wanted = [f"{package}=={versions[0]}", f"keras=={versions[1]}", *TOOLS, "tensorboard"]
    pins = "".join(
        f"{line}\n"
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if re.split(r"[ =]", line)[0] in PINNED
    )
    recipe = "\n".join([*wanted, pins, sys.version, (ROOT / "pyproject.toml").read_text()])
    if ready.exists() and ready.read_text() == recipe:
        return python
    print(f"Preparing {folder.relative_to(ROOT)} (once, a minute or two) …", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(pins)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(constraints)]
    subprocess.run([*pip, "pip"], check=True, cwd=ROOT)
    subprocess.run([*pip, "--editable", ".", *wanted], check=True, cwd=ROOT)
    ready.write_text(recipe)
    return python


def main() -> int:
    pairs = read_pairs()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", default="", help=f"some of: {' '.join(pairs)}")
    parser.add_argument("--tensorflow", default="tensorflow-cpu", help="TensorFlow's package")
    parser.add_argument("--workers", default="4")
    options, arguments = parser.parse_known_args()
    named = any(argument.startswith("tests/") for argument in arguments)
    chosen = options.pairs.split() or list(pairs)
    if unknown := [name for name in chosen if name not in pairs]:
        parser.error(f"no such pair: {', '.join(unknown)}; there are: {' '.join(pairs)}")
    results = []
    for name in chosen:
        python = environment(name, pairs[name], options.tensorflow)
        print(f"TensorFlow {pairs[name][0]} with Keras {pairs[name][1]}", flush=True)
        suites = [*SUITES, *OLDEST] if name == next(iter(pairs)) else SUITES
        began = time.monotonic()
        done = subprocess.run(
            [python, "-m", "pytest", "-q", "-m", "not long", "-n", options.workers,
             "--dist", "loadfile", "--no-loadscope-reorder", "-p", "no:cacheprovider",
             *arguments, *([] if named else suites)],
            cwd=ROOT,
        )  # fmt: skip
        results.append((name, done.returncode, time.monotonic() - began))
    for name, code, seconds in results:
        print(f"{name:10} {'passed' if code == 0 else 'FAILED'} in {seconds / 60:.1f} minutes")
    return max(code for _, code, _ in results)


if __name__ == "__main__":
    sys.exit(main())
