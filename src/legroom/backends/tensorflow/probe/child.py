"""The child process of a probe: runs a step at two small sizes, and records every allocation.

Or of a trial: runs a step at one size, and tells whether it fits. Or of XLA: compiles a step and
tells what that will use. Run as a file, with the job's folder and the number of inter-op threads;
for a trial on a GPU, not yet verified on one, also with its number and the MiB that it may use.
It imports TensorFlow while the step is still being traced by its parent, and starts when a line
comes in on its standard input.
"""

from __future__ import annotations

import functools
import json
import os
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

__all__ = ["main"]

# Steps after the first are recorded until there are this many, or this much time has passed: with
# several threads no two are alike.
_MOST_STEPS = 6
_LEAST_STEPS = 3
_SECONDS = 2.0
_TRIED_STEPS = 3
_ENVIRONMENT = {
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_CPU_ALLOCATOR_USE_BFC": "1",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}


def main() -> None:
    """Run the job in the folder that ``sys.argv[1]`` names."""
    folder, threads, *card = Path(sys.argv[1]), *map(int, sys.argv[2:])
    os.environ.update({"TF_CPP_MIN_LOG_LEVEL": "3"} if card else _ENVIRONMENT)
    # Read when XLA starts; costs nothing where it does not.
    os.environ["XLA_FLAGS"] = f"--xla_dump_to={folder / 'xla'} --xla_dump_hlo_as_text"
    import tensorflow as tf

    tf.config.threading.set_inter_op_parallelism_threads(threads)
    if card:
        _use_card(tf, *card)
    if not sys.stdin.readline().strip():
        return  # the parent has given up
    job = json.loads((folder / "job.json").read_text())
    probe = _Probe(tf, folder, job, "GPU:0" if card else "CPU:0")
    tasks = {"record": probe.run, "try": probe.try_size, "compile": probe.compile}
    record = tasks[job["task"]]()
    (folder / "record.json").write_text(json.dumps(record))


def _use_card(tf: Any, number: int, megabytes: int) -> None:
    """Have this GPU and no other, with so much memory."""
    gpus = tf.config.list_physical_devices("GPU")
    if number >= len(gpus):
        sys.exit(f"TensorFlow finds {len(gpus)} GPUs in a process of its own, and not GPU {number}")
    tf.config.set_visible_devices(gpus[number], "GPU")
    tf.config.set_logical_device_configuration(
        gpus[number], [tf.config.LogicalDeviceConfiguration(memory_limit=megabytes)]
    )


class _Probe:
    """One job."""

    def __init__(self, tf: Any, folder: Path, job: dict[str, Any], device: str) -> None:
        self._tf = tf
        self._device = device
        self._folder = folder
        self._job = job
        self._kept: list[Any] = []

    def run(self) -> dict[str, Any]:
        """Build, then for each size make a batch, take a first step and some more."""
        tf = self._tf
        options = tf.profiler.experimental.ProfilerOptions(
            host_tracer_level=2, python_tracer_level=0, device_tracer_level=0
        )
        with tempfile.TemporaryDirectory(dir=self._folder) as logs:
            tf.profiler.experimental.start(logs, options=options)
            try:
                marks = self._phases()
            finally:
                tf.profiler.experimental.stop()
            return {"phases": marks, **_read_events(Path(logs), marks)}

    def try_size(self) -> dict[str, Any]:
        """A few steps at one size, within whatever limit this process has."""
        tf = self._tf
        try:
            held = self._build()
            batch = self._batch(self._job["sizes"][0])
            source = self._iterator(batch)
            step = self._function(held)
            for _ in range(_TRIED_STEPS):
                step(source)
        except tf.errors.ResourceExhaustedError:
            return {"fits": False}
        return {"fits": True, "peak": tf.config.experimental.get_memory_info(self._device)["peak"]}

    def compile(self) -> dict[str, int]:
        """XLA's report of the step at one size; it is compiled and not run."""
        tf = self._tf
        held = self._build() | self._born()
        (size,) = self._job["sizes"]
        specs = [
            tf.TensorSpec([size, *shape[1:]], dtype) for _, shape, dtype in self._job["inputs"]
        ]
        call = self._caller(held)
        step = tf.function(
            lambda *batch: call(batch), input_signature=specs, autograph=False, jit_compile=True
        )
        step.experimental_get_compiler_ir(*specs)(stage="optimized_hlo")
        reports = (self._folder / "xla").glob("*step*memory-usage-report.txt")
        texts = [path.read_text() for path in reports] or [
            path.read_text() for path in (self._folder / "xla").glob("*memory-usage-report.txt")
        ]
        return max((_read_report(text) for text in texts), key=lambda figures: figures["total"])

    def _phases(self) -> list[str]:
        tf = self._tf
        marks: list[str] = []

        def phase(name: str) -> Any:
            marks.append(name)
            return tf.profiler.experimental.Trace(f"legroom:{name}")

        # In the order of a training: the model, a batch, and what the first step brings along.
        with phase("build"):
            held = self._build()
        largest, *others = self._job["sizes"]
        with phase(f"input {largest}"):
            batch = self._batch(largest)
            source = self._iterator(batch)
        with phase("state"):
            step = self._function(held)
            step.get_concrete_function(source)
        for size in (largest, *others):
            if size != largest:
                with phase(f"input {size}"):
                    batch = self._batch(size)
                    source = self._iterator(batch)
            began, number = time.monotonic(), 0
            while number < 2 or (size == largest and self._goes_on(number, began)):
                number += 1
                with phase(f"step {number} of {size}"):
                    step(source)
            with phase(f"end {size}"):
                del batch, source
        return marks

    @staticmethod
    def _goes_on(steps: int, began: float) -> bool:
        if steps < _LEAST_STEPS:
            return True
        return steps < _MOST_STEPS and time.monotonic() - began < _SECONDS

    def _build(self) -> dict[str, Any]:
        """The variables that there are before the first step, and captured constants."""
        import numpy as np

        tf = self._tf
        constants = np.load(self._folder / "constants.npz")
        handles: dict[str, Any] = {}
        for number, held in enumerate(self._job["held"]):
            if held["born"]:
                continue
            dtype = tf.as_dtype(held["dtype"])
            if held["value"]:
                value = tf.constant(constants[f"c{number}"], dtype)
            elif held["role"] == "weights" and len(held["shape"]) > 1 and dtype.is_floating:
                # As an initializer does it, with the memory that takes in between; but so small
                # that in half precision nothing overflows, or no update would be made.
                value = tf.random.stateless_uniform(held["shape"], [1, 2], -0.01, 0.01, dtype)
            elif held["role"] == "weights" and dtype.is_floating:
                value = tf.ones(held["shape"], dtype)
            else:
                value = tf.zeros(held["shape"], dtype)
            if not held["constant"]:
                value = tf.Variable(value, dtype=dtype)
            self._kept.append(value)
            if held["name"]:
                handles[held["name"]] = value if held["constant"] else value.handle
            del value
        return handles

    def _born(self) -> dict[str, Any]:
        """The variables that the first step brings along.

        Made while it is traced, as Keras does: TensorFlow then gives all of one shape the same
        zeros, until they are first written. A single number may be one to divide by.
        """
        tf = self._tf
        handles = {}
        for held in self._job["held"]:
            if held["born"]:
                single = not held["shape"] and tf.as_dtype(held["dtype"]).is_floating
                make = tf.ones if single else tf.zeros
                variable = tf.Variable(functools.partial(make, held["shape"], held["dtype"]))
                self._kept.append(variable)
                if held["name"]:
                    handles[held["name"]] = variable.handle
        return handles

    def _function(self, held: dict[str, Any]) -> Any:
        """The step, nested as Keras nests it: that decides the order of its ops."""
        tf = self._tf
        call = self._caller(held)
        has_all = False

        def step(iterator: Any) -> Any:
            nonlocal has_all
            if not has_all:
                held.update(self._born())
                has_all = True
            return tf.experimental.Optional.from_value(tuple(call(iterator.get_next())))

        return tf.function(step, autograph=False)

    def _caller(self, held: dict[str, Any]) -> Any:
        """The call of the step's function, to be traced into another one."""
        tf = self._tf
        self._register()
        inputs = [name for name, _, _ in self._job["inputs"]]

        def call(batch: Any) -> Any:
            capture = tf.compat.v1.get_default_graph().capture
            given = dict(zip(inputs, batch, strict=True))
            arguments = [
                given[name] if name in given else capture(held[name])
                for name in self._job["arguments"]
            ]
            return tf.raw_ops.StatefulPartitionedCall(
                args=arguments, Tout=self._job["outputs"], f=self._job["function"]
            )

        return call

    def _register(self) -> None:
        from tensorflow.core.framework import function_pb2
        from tensorflow.python.eager import context

        library = function_pb2.FunctionDefLibrary()
        library.ParseFromString((self._folder / "library.pb").read_bytes())
        for function in library.function:
            context.context().add_function_def(function)

    def _iterator(self, batch: list[Any]) -> Any:
        """A source of this one batch, that leaves its size open as most sources do."""
        tf = self._tf

        def opened(*parts: Any) -> Any:
            return tuple(
                tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]])
                for part in parts
            )

        return iter(tf.data.Dataset.from_tensors(tuple(batch)).map(opened).repeat())

    def _batch(self, size: int) -> list[Any]:
        """Numbers that any model can work with, made in place: data comes without leftovers."""
        tf = self._tf
        batch = []
        for (_, shape, name), most in zip(self._job["inputs"], self._job["classes"], strict=True):
            lengths, dtype = [size, *shape[1:]], tf.as_dtype(name)
            if dtype.is_floating:
                batch.append(tf.random.uniform(lengths, dtype=dtype))
            elif dtype == tf.string:
                batch.append(tf.fill(lengths, "word"))
            elif dtype == tf.bool:
                batch.append(tf.ones(lengths, tf.bool))
            else:
                made = tf.random.uniform(lengths, 0, most, tf.int32)
                batch.append(made if dtype == tf.int32 else tf.cast(made, dtype))
        return batch


def _read_events(logs: Path, marks: list[str]) -> dict[str, Any]:
    """The allocations and releases of each phase, in order."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    space = xplane_pb2.XSpace()
    (path,) = logs.rglob("*.xplane.pb")
    space.ParseFromString(path.read_bytes())
    events: list[tuple[int, str, dict[str, Any]]] = []
    bounds: dict[str, tuple[int, int]] = {}
    for plane in space.planes:
        names = {key: data.name for key, data in plane.event_metadata.items()}
        stats = {key: data.name for key, data in plane.stat_metadata.items()}
        for line in plane.lines:
            for event in line.events:
                name = names[event.metadata_id]
                begin = line.timestamp_ns * 1000 + event.offset_ps
                if name.startswith("legroom:"):
                    bounds[name[8:]] = (begin, begin + event.duration_ps)
                elif name in ("MemoryAllocation", "MemoryDeallocation"):
                    events.append((begin, name, _stats(event, stats)))
    events.sort(key=lambda item: item[0])
    phase_of = sorted((bounds[name][0], name) for name in marks)
    ids: dict[int, int] = {}  # by address
    texts: dict[str, int] = {}
    found: dict[str, list[list[int]]] = {name: [] for name in marks}
    number, current, made = -1, None, 0
    for begin, name, data in events:
        while number + 1 < len(phase_of) and begin >= phase_of[number + 1][0]:
            number += 1
            current = found[phase_of[number][1]]
        if current is None or data.get("allocator_name") != "bfc_cpu_allocator_for_gpu":
            continue
        address = data["addr"]
        if name == "MemoryAllocation":
            made += 1
            ids[address] = made
            op = texts.setdefault(str(data.get("tf_op", "")), len(texts))
            region = texts.setdefault(str(data.get("region_type", "")), len(texts))
            shape = texts.setdefault(str(data.get("shape", "")), len(texts))
            current.append([made, data["requested_bytes"], op, region, shape,
                            data["allocation_bytes"]])  # fmt: skip
        elif address in ids:
            current.append([-ids.pop(address)])
    return {"events": found, "texts": list(texts)}


def _read_report(text: str) -> dict[str, int]:
    """The bytes in all, and those of them that are temporary."""
    total = re.search(r"Total bytes used: (\d+)", text)
    found = re.search(r"size ([\d.]+)(B|KiB|MiB|GiB|TiB), preallocated-temp", text)
    temporary = 0.0
    if found:
        temporary = float(found[1]) * 1024 ** ("B", "KiB", "MiB", "GiB", "TiB").index(found[2])
    return {"total": int(total[1]) if total else 0, "temp": int(temporary)}


def _stats(event: Any, names: dict[int, str]) -> dict[str, Any]:
    read: dict[str, Any] = {}
    for stat in event.stats:
        kind = stat.WhichOneof("value")
        value = names.get(stat.ref_value, "") if kind == "ref_value" else getattr(stat, kind)
        read[names[stat.metadata_id]] = value
    return read


if __name__ == "__main__":
    main()
