"""Checks of estimates that need TensorFlow; several in one process, one JSON line each."""

from __future__ import annotations

import dataclasses
import json
import os
import random
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# The truth that estimates are compared with is this process's own allocator.
os.environ.update(TF_CPU_ALLOCATOR_USE_BFC="1", TF_ENABLE_ONEDNN_OPTS="0")

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import legroom

tf.config.threading.set_inter_op_parallelism_threads(1)


def cnn(optimizer="adam"):
    model = keras.Sequential(
        [keras.Input((64, 64, 3)), layers.Conv2D(24, 3, activation="relu"),
         layers.BatchNormalization(), layers.MaxPooling2D(), layers.Dropout(0.2),
         layers.Conv2D(48, 3, activation="relu"), layers.Flatten(), layers.Dense(10)]
    )  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


class WithLambda(keras.Model):
    """Can't be saved, pickled or cloned; has a train_step of its own."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(256)
        self.squash = lambda x: tf.nn.silu(x)
        self.last = layers.Dense(1)

    def call(self, x, training=False):
        return self.last(self.squash(self.first(x["numbers"]))) + tf.cast(x["flags"], tf.float32)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def opened(*parts):
    """A batch whose size is left open, as most sources of data leave it."""
    return tuple(
        tf.compat.v1.placeholder_with_default(part, [None, *part.shape[1:]]) for part in parts
    )


def steady_peak(model, x, y, steps):
    """What the steps of a training take that come after its first two."""
    data = tf.data.Dataset.from_tensors((x, y)).map(opened).repeat()
    model.fit(data, steps_per_epoch=2, verbose=0)
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=steps, verbose=0)
    return tf.config.experimental.get_memory_info("CPU:0")["peak"]


def state(model):
    """Everything that asking must leave as it was."""
    from tensorflow.python.eager import context
    from tensorflow.python.framework import ops

    return {
        "weights": [value.tolist() for value in map(np.asarray, model.get_weights())],
        "optimizer": [str(v.path) for v in model.optimizer.variables],
        "built": [model.built, model.optimizer.built, model._compile_metrics.built],
        "metrics": [m.name for m in model.metrics],
        "functions": [model.train_function is None, model.predict_function is None],
        "python": hash(random.getstate()),
        "numpy": np.random.get_state()[1].tolist(),
        "tf seed": context.context()._rng.getstate()[1][:5] if context.context()._rng else None,
        "gradients": len(ops.gradient_registry.list()),
        "devices": [d.name for d in tf.config.list_logical_devices()],
        "threads": tf.config.threading.get_inter_op_parallelism_threads(),
        "policy": keras.config.dtype_policy().name,
    }


def nothing_changes():
    keras.utils.set_random_seed(3)
    model = cnn()
    number = int(keras.layers.Dense(1).name.rpartition("_")[2])
    before, used = state(model), tf.config.experimental.get_memory_info("CPU:0")["current"]
    results = [legroom.estimate(model, 8, source=source) for source in ("traced", "probed")]
    grown = tf.config.experimental.get_memory_info("CPU:0")["current"] - used
    after = state(model)
    return {
        "changed": [key for key in before if before[key] != after[key]],
        # Keras counts up with each layer that is made; none was, meanwhile.
        "names": int(keras.layers.Dense(1).name.rpartition("_")[2]) - number,
        "grown": grown,
        "peaks": [made.peak_bytes for made in results],
    }


def trains_the_same():
    """A training after an estimate is the one it would have been without."""
    x = np.random.default_rng(0).random((16, 64, 64, 3), dtype="float32")
    y = np.arange(16) % 10
    seen = []
    for asks in (False, True):
        keras.utils.set_random_seed(5)
        model = cnn()
        if asks:
            legroom.estimate(model, 8, source="traced")
        model.fit(x, y, batch_size=8, epochs=1, verbose=0)
        seen.append([float(np.abs(w).sum()) for w in model.get_weights()])
    return {"plain": seen[0], "asked": seen[1]}


def near_the_truth():
    """The first of all checks: what was in memory before decides where things go."""
    model, size = cnn("sgd"), 48
    x, y = tf.random.uniform((size, 64, 64, 3)), tf.zeros((size,), tf.int32)
    truth = steady_peak(model, x, y, steps=6)
    made = {s: legroom.estimate(model, size, source=s) for s in ("traced", "probed")}
    probed = made["probed"]
    return {
        "ratios": {s: each.peak_bytes / truth for s, each in made.items()},
        "bars": [each.low_bytes < each.peak_bytes < each.high_bytes for each in made.values()],
        "breakdown": probed.breakdown,
        "peak": probed.peak_bytes,
        "layers": [name for name, _ in probed.layers[:3]],
        "timeline": max(size for _, size in probed.timeline),
        "weights": int(sum(np.prod(w.shape) * 4 for w in model.weights)),
        "json": type(legroom.Estimate.from_json(probed.to_json())).__name__,
    }


def volumes():
    """What the gradients of a convolution over volumes take beside their results."""
    from legroom.backends.tensorflow.graph.scratch import scratch_bytes

    kernel, ones = (3, 3, 3, 3, 16), [1] * 5

    def scratch(kind, samples):
        x, w = tf.zeros((samples, 8, 20, 20, 3)), tf.zeros(kernel)
        y = tf.zeros((samples, 6, 18, 18, 16))
        of_filter = kind == "Conv3DBackpropFilterV2"
        given = {"input": x, "filter_sizes": kernel}
        given = given if of_filter else {"input_sizes": x.shape, "filter": w}
        tf.config.experimental.reset_memory_stats("CPU:0")
        before = tf.config.experimental.get_memory_info("CPU:0")["current"]
        made = getattr(tf.raw_ops, kind)(out_backprop=y, strides=ones, padding="VALID", **given)
        peak = tf.config.experimental.get_memory_info("CPU:0")["peak"]
        taken = peak - before - made.numpy().nbytes
        shapes = [[5], list(kernel), y.shape.as_list()]
        shapes = [x.shape.as_list(), [5], shapes[2]] if of_filter else shapes
        return taken, scratch_bytes(kind, shapes, made.shape.as_list(), 4)

    kinds = ("Conv3DBackpropFilterV2", "Conv3DBackpropInputV2")
    return {kind: [scratch(kind, 2**power) for power in range(8)] for kind in kinds}


class Duel(keras.Model):
    """Two optimizers in one step, the second of which sees what the first one did."""

    def __init__(self):
        super().__init__()
        self.makes = keras.Sequential([keras.Input((8,)), *[layers.Dense(64) for _ in range(3)]])
        self.judges = keras.Sequential(
            [keras.Input((64,)), *[layers.Dense(64, "gelu") for _ in range(3)], layers.Dense(1)]
        )
        self.second = keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True)

    def call(self, x):
        return self.judges(self.makes(x))

    def train_step(self, data):
        x, real = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.judges(self.makes(x)) - self.judges(real))
        judged = self.judges.trainable_variables
        self.optimizer.apply(tape.gradient(loss, judged), judged)
        with tf.GradientTape() as tape:
            loss = -tf.reduce_mean(self.judges(self.makes(x)))
        made = self.makes.trainable_variables
        self.second.apply(tape.gradient(loss, made), made)
        return {"loss": loss}


def half_precision():
    """Where the update is made only if all gradients are finite."""
    keras.config.set_dtype_policy("mixed_float16")
    wide = [layers.Dense(1024, "relu") for _ in range(6)]
    model = keras.Sequential([keras.Input((1024,)), *wide, layers.Dense(10, "softmax")])
    model.compile("adam", "sparse_categorical_crossentropy")
    made = {source: legroom.estimate(model, 32, source=source) for source in ("traced", "probed")}
    x, y = tf.random.normal((32, 1024)), tf.zeros((32,), tf.int32)
    peak = steady_peak(model, x, y, steps=2)
    return {
        "updates": int(model.optimizer.iterations.value),
        "ratios": {source: each.peak_bytes / peak for source, each in made.items()},
        "gradients": made["traced"].breakdown["gradients"],
    }


class AllWithAll(keras.layers.Layer):
    """Compares each sample of a batch with each other one, in a list of pairs."""

    def call(self, x):
        pairs = keras.ops.tensordot(x, x, axes=(2, 2))
        pairs = keras.ops.reshape(keras.ops.transpose(pairs, (0, 2, 1, 3)), (-1, 24, 24))
        self.add_loss(keras.ops.mean(keras.ops.square(pairs - keras.ops.eye(24))))
        return x


def twins():
    """How many ops are left of a loss that cuts the same part out of the outputs three times."""
    from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
    from legroom.backends.tensorflow.graph.stepgraph import trace_step
    from legroom.backends.tensorflow.graph.walk import walk_step

    def loss(labels, outputs):
        one, two, three = (outputs[:, 1:] for _ in range(3))
        return keras.ops.mean(one * keras.ops.tanh(two) * (three - labels[:, 1:]))

    model = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
    model.compile("sgd", loss)
    step = trace_step(model, samples=TRACED_SIZE)
    cuts = [op for op in step.graph.get_operations() if op.type == "StridedSlice"]
    cut = {op.name for op in cuts if op.inputs[0].shape.rank == 2}
    left = [node.name for node in walk_step(step).nodes if node.name in cut]
    return {"cut": len(cut), "left": len(left)}


def walked():
    """Ops whose memory or place in the order is not that of most, by the walk alone."""
    grown = [layers.Conv2DTranspose(32, 3, 2, "same", activation="relu") for _ in range(3)]
    inputs = {"transposed": (16, 16, 16), "logits": (64, 32), "pairs": (24, 32)}
    ends = {
        "transposed": ([*grown, layers.Conv2DTranspose(1, 3, padding="same")], "mse"),
        "logits": (
            [layers.Dense(2000)], keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        ),
        "pairs": ([layers.Dense(32), AllWithAll(), layers.Dense(1)], "mse"),
    }  # fmt: skip
    sizes = {"transposed": 24, "logits": 96, "pairs": 96}
    found = {}
    for name, (stack, loss) in ends.items():
        model = keras.Sequential([keras.Input(inputs[name]), *stack])
        model.compile("sgd", loss)
        size = sizes[name]
        said = legroom.estimate(model, size, source="traced").peak_bytes
        x = tf.random.normal((size, *inputs[name]))
        labels = (size, *model.output_shape[1 : 2 if name == "logits" else None])
        y = tf.zeros(labels, tf.int32 if name == "logits" else tf.float32)
        found[name] = said / steady_peak(model, x, y, steps=4)
    return {"ratios": found}


def repeats():
    """Of updates that are alike one is traced; what comes of it is what comes of all of them."""
    from legroom.backends.tensorflow.forecast.graph_script import write_script
    from legroom.backends.tensorflow.graph.axes import TRACED_SIZE
    from legroom.backends.tensorflow.graph.stepgraph import trace_step
    from legroom.backends.tensorflow.graph.walk import input_sizes, walk_step

    duel = Duel()
    duel(tf.zeros((2, 8)))
    duel.compile(keras.optimizers.AdamW(clipnorm=1.0))
    models = {"normed": (normed(), None), "duel": (duel, (np.zeros((2, 8)), np.zeros((2, 64))))}
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        dense = [layers.Dense(32) for _ in range(4)]
        model = keras.Sequential([keras.Input((32,)), *dense])
        model.compile(keras.optimizers.Adam(use_ema=True), "mse")
        models[policy] = (model, None)
    keras.config.set_dtype_policy("float32")
    found = {}
    for name, (model, data) in models.items():
        moves = []
        for short in (False, True):
            step = trace_step(model, data=data, samples=TRACED_SIZE, repeats=short)
            script = write_script(walk_step(step), step.held, input_sizes(step))
            moves.append([[m for _, m, _ in script.phases(n, 2)] for n in (1, 100)])
        found[name] = {"same": moves[0] == moves[1], "left_out": len(step.repeats)}
    return found


def for_xla():
    """A net whose program takes more in one piece than lies idle in a pool that has grown."""
    keras.utils.set_random_seed(1)
    x = inputs = keras.Input((32, 32, 3))
    for width in (16, 48, 48):
        x = layers.Dropout(0.1)(layers.Conv2D(width, 3, padding="same", activation="relu")(x))
    model = keras.Model(inputs, layers.Dense(10)(layers.Flatten()(x)))
    model.compile("adam", "mse", jit_compile=True)
    size = 48
    batch = (tf.random.uniform((size, 32, 32, 3)), tf.zeros((size, 10)))
    return model, size, tf.data.Dataset.from_tensors(batch).repeat()


def compiled():
    """A step that XLA compiles: its own figures, against the allocator's in a fresh process."""
    from legroom.prediction.sources import Prediction

    model, size, data = for_xla()
    prediction = Prediction(model)
    made = prediction.estimate(size)
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=1, verbose=0)
    first = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    model.fit(data, steps_per_epoch=1, verbose=0)
    tf.config.experimental.reset_memory_stats("CPU:0")
    model.fit(data, steps_per_epoch=2, verbose=0)
    steady = tf.config.experimental.get_memory_info("CPU:0")["peak"]
    return {
        "source": made.source,
        "ratios": [made.first_step_bytes / first, made.peak_bytes / steady],
        "breakdown": made.breakdown,
        "peak": made.peak_bytes,
        "pool": prediction.peak(size),
        "loop": legroom.estimate(with_a_loop(), 8).source,
    }


def with_a_loop():
    model = keras.Sequential([keras.Input((9, 4)), layers.LSTM(8), layers.Dense(1)])
    model.compile("adam", "mse", jit_compile=True)
    return model


def compiled_in_a_pool():
    """Whether it trains in the pool that this process has."""
    try:
        model, _, data = for_xla()
        model.fit(data, steps_per_epoch=4, verbose=0)
    except tf.errors.ResourceExhaustedError:
        return {"fits": False}
    return {"fits": True}


def many_kinds():
    """Models of all sorts, traced: loops, lambdas, dicts, lengths, half precision, methods."""
    found = {}
    words = keras.Sequential(
        [keras.Input((None,), dtype="int32"), layers.Embedding(500, 32), layers.LSTM(64),
         layers.Dense(1)]
    )  # fmt: skip
    words.compile("adamw", "mse")
    found["lstm"] = [
        legroom.estimate(words, 64, length=n, source="traced").peak_bytes for n in (20, 80)
    ]
    odd = WithLambda()
    odd.compile("rmsprop")
    batch = ({"numbers": np.zeros((4, 16)), "flags": np.zeros((4, 1), "int8")}, np.zeros((4, 1)))
    odd({k: tf.zeros(v.shape) for k, v in batch[0].items()})
    found["odd"] = legroom.estimate(odd, 512, data=batch, source="probed").peak_bytes
    model = cnn()
    found["methods"] = {
        m: legroom.estimate(model, 32, method=m, source="traced").peak_bytes
        for m in ("fit", "evaluate", "predict")
    }
    found["half"] = []
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        plain = keras.Sequential(
            [keras.Input((64, 64, 3)), layers.Conv2D(32, 3, activation="relu"),
             layers.Conv2D(32, 3, activation="relu"), layers.Flatten(), layers.Dense(1)]
        )  # fmt: skip
        plain.compile("adam", "mse")
        found["half"].append(legroom.estimate(plain, 32, source="traced").peak_bytes)
    keras.config.set_dtype_policy("float32")
    for layer in model.layers[:-1]:
        layer.trainable = False
    model.compile("adam", model.loss)
    found["frozen"] = legroom.estimate(model, 32, source="traced").peak_bytes
    # Its loss calls functions that are known to the graph alone, inside of a loop.
    letters = keras.Sequential([keras.Input((24, 8)), layers.Dense(12)])
    letters.compile("adam", keras.losses.CTC())
    batch = (np.zeros((2, 24, 8), "float32"), np.ones((2, 5), "int32"))
    found["letters"] = legroom.estimate(letters, 32, data=batch, source="traced").peak_bytes
    return found


def errors():
    def message(call):
        try:
            call()
        except legroom.LegroomError as error:
            return [type(error).__name__, str(error)]
        except Exception as error:
            return ["NOT OURS", f"{type(error).__name__}: {error}"]
        return ["none", ""]

    model = cnn()
    unbuilt = keras.Sequential([layers.Dense(3)])
    unbuilt.compile("sgd", "mse")
    uncompiled = keras.Sequential([keras.Input((3,)), layers.Dense(3)])
    words = keras.Sequential([keras.Input((None,), dtype="int32"), layers.Embedding(5, 2)])
    words.compile("sgd", "mse")
    ragged = (tf.ragged.constant([[1, 2], [3]]), np.zeros((2, 1)))
    ask = legroom.estimate
    return {
        "seen": {
            "unbuilt": message(lambda: ask(unbuilt, 8)),
            "uncompiled": message(lambda: ask(uncompiled, 8)),
            "zero": message(lambda: ask(model, 0)),
            "negative": message(lambda: ask(model, -3)),
            "absurd": message(lambda: ask(model, 10**12)),
            "fraction": message(lambda: ask(model, 2.5)),
            "lengths": message(lambda: ask(words, 8)),
            "ragged": message(lambda: ask(words, 8, data=ragged)),
            "no model": message(lambda: ask("resnet", 8)),
            "source": message(lambda: ask(model, 8, source="guess")),
            "method": message(lambda: ask(model, 8, method="train")),
            "shape": message(lambda: ask(model, 8, data=(np.zeros((2, 7)), np.zeros(2)))),
            "memory": message(lambda: ask(model, 8, memory="lots")),
            "weights": message(lambda: legroom.plan(model, 8, memory="100kB", source="traced")),
            "allow": message(lambda: legroom.plan(model, 8, memory="1GB", allow=["magic"])),
        }
    }


def plans():
    model = cnn()
    whole = legroom.estimate(model, 64, source="traced")
    roomy = legroom.plan(model, 64, memory="64GiB", source="traced")
    tight = legroom.plan(model, 64, memory=whole.peak_bytes // 2, source="traced")
    try:
        legroom.plan(model, 64, memory=whole.peak_bytes // 2, source="traced", exact=True)
        exact = None
    except legroom.CannotFitError as error:
        exact = str(error)
    one = legroom.estimate(model, 1, source="traced")
    # The sums of gradients, those of a slice, and the other 63 samples.
    beside = 8 * sum(int(np.prod(v.shape)) for v in model.trainable_variables) + 63 * 49_160
    between = (one.peak_bytes + one.high_bytes) // 2 + beside
    unsure = legroom.plan(model, 64, memory=between, source="traced", allow=["slices"])
    other = cnn("sgd")
    refused = []
    for plan, target in ((tight, other), (dataclasses.replace(tight, legroom="0.0.0"), model)):
        try:
            plan.apply(target)
        except legroom.LegroomError as error:
            refused.append(str(error))
    tight.apply(model)
    x, y = np.zeros((64, 64, 64, 3), "float32"), np.zeros(64, "int32")
    history = model.fit(x, y, batch_size=64, verbose=0)
    # The same model made anew, whose layers have other names, by the plan read from a file.
    again = legroom.Plan.from_json(tight.to_json())
    followed = legroom.fit(cnn(), x, y, batch_size=64, verbose=0, plan=again).legroom
    return {
        "followed": followed.slice_size,
        "refused": refused,
        "ran": history.legroom.slice_size,
        "roomy": roomy.chosen.name,
        "tight": [tight.chosen.name, tight.slice_size],
        "peak": tight.chosen.peak_bytes,
        "budget": tight.budget_bytes,
        "reasons": [way.reason for way in tight.alternatives],
        "notes": list(tight.notes),
        "exact": exact,
        "unsure": [unsure.chosen.sure, unsure.chosen.slice_size, unsure.notes[-1]],
        "again": again == tight,
    }


def normed():
    """A deep net with BatchNorm: in slices it would be another training."""
    keras.utils.set_random_seed(7)
    x = inputs = keras.Input((256, 16))
    for _ in range(12):
        x = layers.BatchNormalization()(layers.Dense(64, use_bias=False)(x))
        x = layers.Dropout(0.1)(layers.ReLU()(x))
    model = keras.Model(inputs, layers.Dense(4)(layers.GlobalAveragePooling1D()(x)))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def recompute():
    """A plan that recomputes: chosen where slices may not be, followed in a model made anew."""
    batch = 48
    x = np.random.default_rng(0).random((2 * batch, 256, 16), dtype="float32")
    y = np.arange(2 * batch) % 4
    model = normed()
    whole = legroom.estimate(model, batch, source="traced")
    budget = int(0.7 * whole.high_bytes)
    plan = legroom.plan(model, batch, memory=budget, source="traced", exact=True)
    # Of this one even a single sample is too much, unless it is recomputed.
    long = inputs = keras.Input((1024, 128))
    for _ in range(10):
        long = layers.Dense(128, "gelu")(long)
    long = keras.Model(inputs, layers.Dense(1)(long))
    long.compile("sgd", "mse")
    one = legroom.estimate(long, 1, source="traced").peak_bytes
    tight = legroom.plan(long, 4, memory=int(1.2 * one), source="traced")
    trained, peaks = [], []
    for options in ({}, {"plan": legroom.Plan.from_json(plan.to_json())}):
        made = normed()
        held = tf.config.experimental.get_memory_info("CPU:0")["current"]
        tf.config.experimental.reset_memory_stats("CPU:0")
        keras.utils.set_random_seed(8)
        history = legroom.fit(made, x, y, batch_size=batch, shuffle=False, verbose=0, **options)
        peaks.append(tf.config.experimental.get_memory_info("CPU:0")["peak"] - held)
        trained.append(made.get_weights())
    ways = [plan.chosen, *plan.alternatives]
    return {
        "ways": {way.name: [way.peak_bytes, way.time_factor, way.reason] for way in ways},
        "chosen": plan.chosen.name,
        "better": plan.next_better_bytes,
        "budget": budget,
        "tight": [tight.chosen.name, tight.chosen.slice_size, len(tight.chosen.recompute)],
        "differs": max(float(np.abs(a - b).max()) for a, b in zip(*trained, strict=True)),
        "peaks": peaks,
        "told": [event.data.get("recompute") is not None for event in history.legroom.events
                 if event.name == "plan"],
        "left": [name for name in vars(made) if "_run_through_graph" in name],
    }  # fmt: skip


def largest_of(model, budget, **options):
    """The largest batch, that it runs, and that twice as much does not."""
    from legroom.prediction.sources import Prediction

    size = legroom.largest_batch(model, memory=budget, **options)
    prediction = Prediction(model, source="probed")
    return {
        "size": size,
        "fits": prediction.try_size(size, budget),
        "twice": prediction.try_size(2 * size, budget),
    }


def largest():
    return largest_of(cnn("sgd"), 120 * 2**20, multiple=4)


def largest_of_others():
    words = keras.Sequential(
        [keras.Input((40,), dtype="int32"), layers.Embedding(500, 64), layers.LSTM(96),
         layers.Dense(3)]
    )  # fmt: skip
    words.compile("adam", "mse")
    return {
        "lstm": largest_of(words, 60 * 2**20, power_of_two=True),
        "normed": largest_of(normed(), 80 * 2**20),
    }


for name in sys.argv[1].split(","):
    print(json.dumps({"check": name, **globals()[name]()}), flush=True)
