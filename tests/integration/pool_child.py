"""Reads TensorFlow's device as the guard does, under a cap of 300 MiB, and prints it as JSON."""

from __future__ import annotations

import json
import os

import legroom

legroom.limit("300MiB")
import tensorflow as tf  # noqa: E402

from legroom.backends.tensorflow.device import caps, pool  # noqa: E402
from legroom.backends.tensorflow.graph.stepgraph import trace_step  # noqa: E402
from legroom.backends.tensorflow.probe.parent import ProbeChild  # noqa: E402

seen: dict[str, object] = {"started": [pool.has_started()]}
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
# A CPU with logical devices refuses growth as a capped GPU does.
growth = tf.config.experimental.set_memory_growth
try:
    growth(cpu, True)
except ValueError as error:
    seen["growth refused"] = str(error)
pool._let_grow([cpu])
growth(cpu, True)
seen["growth asked"] = os.environ.pop("TF_FORCE_GPU_ALLOW_GROWTH")
seen["placeholder"] = pool.allocator_limit("CPU:0")
seen["unlisted"] = pool.allocator_limit("GPU:0")
seen["started"] = [*seen["started"], pool.has_started()]  # type: ignore[misc]
with tf.device("CPU:1"):
    seen["device"] = pool.device_name()
seen["limit"] = [pool.limit_bytes(), pool.is_certain(), caps.whole_bytes()]
held = tf.zeros([2**20])
seen["in_use"] = pool.in_use_bytes()
import keras  # noqa: E402
import numpy as np  # noqa: E402

from legroom.planning.make import read_budget  # noqa: E402

model = keras.Sequential([keras.Input((256,)), keras.layers.Dense(4096), keras.layers.Dense(1)])
model.compile("sgd", "mse")
seen["budget"] = [read_budget(None, model), read_budget(None), read_budget("50%", model)]
seen["in_use_then"] = pool.in_use_bytes()
try:
    with ProbeChild(limit=100 * 2**20, card=0) as child:
        child.fits(trace_step(model), 2)
except legroom.LegroomError as error:
    seen["no card"] = str(error)
# A limit that nobody vouches for, far below the real one: as a driver's "free" beside a pool.
real = pool.limit_bytes, pool.is_certain
pool.limit_bytes, pool.is_certain = lambda: 8 * 2**20, lambda: False
net = keras.Sequential(
    [
        keras.Input((64, 64, 3)),
        keras.layers.Conv2D(16, 3, activation="tanh"),
        keras.layers.Conv2D(16, 3, activation="tanh"),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(1),
    ]
)
net.compile("sgd", "mse")
for name, batch in (("fits", 64), ("too large", 400)):
    x, y = np.ones((batch, 64, 64, 3), "float32"), np.ones((batch, 1), "float32")
    report = legroom.fit(net, x, y, batch_size=batch, epochs=2, verbose=0).legroom
    tried = [event.data["slice_size"] for event in report.events if event.name == "oom"]
    seen[name] = [report.ooms, tried, report.slice_size, report.samples_lost]
pool.limit_bytes, pool.is_certain = real
# As on a GPU that TensorFlow tells nothing of: every call is made, none may raise.
pool.device_name = lambda: "GPU:0"
for allocator, forced in (("", "true"), ("cuda_malloc_async", "false")):
    os.environ.update(TF_GPU_ALLOCATOR=allocator, TF_FORCE_GPU_ALLOW_GROWTH=forced)
    reading = pool.read_device()
    seen[f"gpu {forced}"] = [reading.device, reading.allocator_bytes, reading.grows, reading.hard]
seen["gpu"] = [pool.limit_bytes(), pool.is_certain()]
try:
    read_budget(None, model)
except legroom.BadBudgetError as error:
    seen["unread"] = str(error)
try:
    legroom.largest_batch(model, memory="100MiB")
except legroom.BadBudgetError as error:
    seen["largest"] = str(error)
del os.environ["TF_FORCE_GPU_ALLOW_GROWTH"]
seen["asked"] = pool.read_device().grows
print(json.dumps(seen))
