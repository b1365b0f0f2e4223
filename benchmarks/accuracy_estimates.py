"""The estimates of one model at several batch sizes, beside two simpler ways to guess.

A child process of accuracy.py.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
parser = argparse.ArgumentParser()
parser.add_argument("model")
parser.add_argument("optimizer")
parser.add_argument("precision")
parser.add_argument("sizes", type=lambda text: [int(part) for part in text.split(",")])
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--grappler", action="store_true")
parser.add_argument("--compiled", action="store_true", help="by XLA, and only its figures")
options = parser.parse_args()

import tensorflow as tf  # noqa: E402
from zoo import compiled  # noqa: E402

from legroom.backends.tensorflow.graph.stepgraph import trace_step  # noqa: E402
from legroom.prediction.sources import Prediction  # noqa: E402

if options.threads:
    tf.config.threading.set_inter_op_parallelism_threads(options.threads)
model = compiled(options.model, options.optimizer, options.precision)


def ask_grappler(samples: int) -> int | None:
    """What TensorFlow's own estimator says of the graph."""
    from tensorflow.core.protobuf import meta_graph_pb2
    from tensorflow.python.grappler import cluster, item

    step = trace_step(model, samples=samples)
    graph = step.graph.as_graph_def()
    shapes = {held.name: held for held in step.held if held.name}
    for node in graph.node:
        if node.op == "Placeholder" and node.name in shapes and node.attr["dtype"].type == 20:
            held = shapes[node.name]
            node.op = "VarHandleOp"
            node.attr["dtype"].type = tf.as_dtype(held.dtype).as_datatype_enum
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(held.shape).as_proto())
            node.attr["shared_name"].s = node.name.encode()
    with tf.Graph().as_default() as plain:
        tf.graph_util.import_graph_def(graph, name="")
        meta = tf.compat.v1.train.export_meta_graph(graph=plain)
    ends = [n.name for n in graph.node if n.op.startswith("Assign")]
    ends += [tensor.op.name for tensor in step.graph.outputs]
    fetched = meta_graph_pb2.CollectionDef()
    fetched.node_list.value.extend(ends)
    meta.collection_def["train_op"].CopyFrom(fetched)
    used = cluster.Cluster().DeterminePeakMemoryUsage(item.Item(meta))
    return int(max(peak for peak, _ in used.values()))


if options.compiled:
    model.jit_compile = True
found: dict[str, dict[str, Any]] = {str(size): {} for size in options.sizes}
for source in ("compiled",) if options.compiled else ("traced", "probed"):
    prediction = Prediction(model, source=source)
    for size in options.sizes:
        began = time.perf_counter()
        made = prediction.estimate(size)
        found[str(size)][source] = {
            "peak": made.peak_bytes,
            "low": made.low_bytes,
            "high": max(made.high_bytes, made.first_step_bytes),
            "first": made.first_step_bytes,
            "seconds": time.perf_counter() - began,
        }
if options.compiled:
    print(json.dumps(found))
    raise SystemExit
# A straight line through the two sizes that were probed.
two, three = (prediction.middle_peak(size) for size in (2, 3))
for size in options.sizes:
    found[str(size)]["line"] = {"peak": two + (three - two) * (size - 2)}
    if options.grappler:
        try:
            found[str(size)]["grappler"] = {"peak": ask_grappler(size)}
        except Exception as error:
            print(f"grappler: {error}", flush=True)
print(json.dumps(found))
