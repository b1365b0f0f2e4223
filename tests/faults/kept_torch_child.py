"""Trainings on PyTorch that are killed: `kept_torch_child.py CASE+CASE+… OUT`.

One script trains several small models, one after the other, with a different input each. What each
training came to, and how often it has seen each sample, is written to OUT. The plain loops import
no Keras.
"""

from __future__ import annotations

import os
import sys
import time

import numpy as np
import torch

SAMPLES, FEATURES, EPOCHS, BATCH = 240, 8, 3, 16
PAUSE = float(os.environ.get("KEPT_PAUSE", "0.01"))
DEVICE = os.environ.get("KEPT_DEVICE", "cpu")  # of the plain loops; Keras takes a GPU by itself


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(SAMPLES, FEATURES)).astype("float32")
    y = x[:, 1:].sum(1, keepdims=True)
    x[:, 0] = np.arange(SAMPLES)
    return x, y


def tensors():
    return torch.utils.data.TensorDataset(*map(torch.from_numpy, data()))


class Noisy(torch.utils.data.Dataset):
    """Samples with noise from every generator there is, and a counter of its own."""

    def __init__(self):
        self.x, self.y = map(torch.from_numpy, data())
        self.own = np.random.default_rng(3)
        self.asked = 0

    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        self.asked += 1
        noise = torch.rand(()) + np.random.random() + self.own.random() + self.asked * 1e-3
        return self.x[index], self.y[index] + noise.float() * 0.01


class Rows(torch.utils.data.IterableDataset):
    """Samples that come as they come, in an order that is drawn by NumPy."""

    def __iter__(self):
        x, y = data()
        for row in np.random.permutation(SAMPLES):
            yield x[row], y[row]


class OwnOrder(torch.utils.data.Sampler):
    """An order that is shuffled for each pass."""

    def __init__(self):
        self.order = torch.arange(SAMPLES)
        self.passes = 0

    def __len__(self):
        return SAMPLES

    def __iter__(self):
        self.passes += 1
        self.order[:] = self.order[torch.randperm(SAMPLES)]
        yield from self.order.tolist()


def loaders(name):
    """A loader by its name."""
    make = torch.utils.data.DataLoader
    if name == "own_generator":
        return make(tensors(), BATCH, shuffle=True, generator=torch.Generator().manual_seed(5))
    if name == "noisy":
        return make(Noisy(), BATCH, shuffle=True)
    if name == "workers":
        return make(Noisy(), BATCH, shuffle=True, num_workers=2)
    if name == "rows":
        return make(Rows(), BATCH)
    if name == "own_order":
        return make(tensors(), BATCH, sampler=OwnOrder())
    return make(tensors(), BATCH, shuffle=True)


# Loops in plain PyTorch.


class Net(torch.nn.Module):
    """Counts the samples that it has seen, by their number, in a buffer that is not saved."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(FEATURES - 1, 12), torch.nn.Linear(12, 1)
        self.norm, self.drop = torch.nn.BatchNorm1d(12), torch.nn.Dropout(0.3)
        self.register_buffer("counts", torch.zeros(SAMPLES), persistent=False)

    def forward(self, x):
        self.counts += torch.bincount(x[:, 0].long(), minlength=SAMPLES)
        return self.second(self.drop(torch.relu(self.norm(self.first(x[:, 1:])))))


def plain(name):
    """A loop with a scheduler, gradients over two batches, and a validation that draws."""
    import legroom

    torch.manual_seed(7)
    np.random.seed(7)
    model = Net().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, amsgrad=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * 8)
    averaged = torch.optim.swa_utils.AveragedModel(model)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=64.0, growth_interval=3)
    log = {"losses": [], "best": torch.tensor(9e9, device=DEVICE), "rates": []}
    loader = loaders(name)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler,
             "averaged": averaged, "log": log}  # fmt: skip
    for _ in range(EPOCHS):
        model.train()
        for number, (x, y) in enumerate(legroom.resumable(loader, state=state)):
            del number  # of the batches of this process
            x, y = x.to(DEVICE), y.to(DEVICE)
            loss = torch.nn.functional.mse_loss(model(x), y)
            scaler.scale(loss / 2).backward()
            log["losses"].append(loss.item())
            torch.minimum(log["best"], loss.detach(), out=log["best"])
            if len(log["losses"]) % 2 == 0:
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                scheduler.step()
                averaged.update_parameters(model)
                log["rates"].append(scheduler.get_last_lr()[0])
            time.sleep(PAUSE)
        model.eval()
        log["losses"].append(float(torch.rand(())))
    slots = [v for s in optimizer.state.values() for v in s.values()]
    return model.counts, [*model.state_dict().values(), *slots, *averaged.state_dict().values(),
                          log["losses"], log["best"], log["rates"], scaler.get_scale(),
                          torch.rand(3), np.random.random(3)]  # fmt: skip


# Models of Keras.


def keras_model(extra=()):
    import keras
    from keras import layers

    class Seen(layers.Layer):
        """Counts samples by their number, which is the first feature."""

        def build(self, shape):
            self.counts = self.add_weight(
                shape=(SAMPLES,), initializer="zeros", trainable=False, name="counts"
            )

        def call(self, inputs, training=False):
            if training:
                numbers = keras.ops.cast(inputs[:, 0], "int32")
                seen = keras.ops.one_hot(numbers, SAMPLES, dtype="float32")
                self.counts.assign_add(keras.ops.sum(seen, axis=0))
            return keras.ops.cast(inputs[:, 1:], self.compute_dtype)

    return keras.Sequential(
        [keras.Input((FEATURES,)), Seen(), layers.Dense(12, "relu"), *extra,
         layers.Dropout(0.3), layers.Dense(1)]
    )  # fmt: skip


def arrays():
    """Shuffled arrays, validation inside, callbacks that remember; a layer of PyTorch's own."""
    import keras

    norm = keras.layers.TorchModuleWrapper(torch.nn.BatchNorm1d(12))
    model = keras_model([keras.layers.Dense(12), norm])
    model.compile("adam", "mse", metrics=["mae"])
    x, y = data()
    callbacks = [
        keras.callbacks.EarlyStopping("val_loss", patience=3, restore_best_weights=True),
        keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
    ]
    return model, (x, y), {"batch_size": BATCH, "validation_data": (x[:64], y[:64]),
                           "callbacks": callbacks}  # fmt: skip


def batchwise():
    """Shuffled inside of each batch, which PyTorch draws for batch by batch."""
    model = keras_model()
    model.compile("adam", "mse")
    return model, data(), {"batch_size": BATCH, "shuffle": "batch"}


def unbuilt():
    """A model that is built by its first step, which is its own, with an optimizer of PyTorch's."""
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = keras_model([keras.layers.BatchNormalization()])
            self.rate = None

        def call(self, inputs, training=False):
            return self.inner(inputs, training=training)

        def train_step(self, inputs):
            x, y = inputs
            if self.rate is None:
                weights = [v.value for v in self.inner.trainable_variables]
                self.own = torch.optim.SGD(weights, 0.01, momentum=0.9)
                self.rate = torch.optim.lr_scheduler.ExponentialLR(self.own, 0.99)
            self.zero_grad()
            loss = keras.ops.mean((self(x, training=True) - y) ** 2)
            loss.backward()
            self.own.step()
            self.rate.step()
            return {"loss": loss}

    model = Own()
    model.compile(keras.optimizers.Adam(0.01))
    return model, data(), {"batch_size": BATCH}


def sequence():
    """A `PyDataset` with an order of its own, drawn after each epoch, and noise by two ways."""
    import keras

    class Shuffled(keras.utils.PyDataset):
        def __init__(self):
            super().__init__()
            self.x, self.y = data()
            self.order = np.arange(SAMPLES)
            self.own = np.random.default_rng(3)

        def __len__(self):
            return SAMPLES // BATCH

        def __getitem__(self, index):
            rows = self.order[index * BATCH : (index + 1) * BATCH]
            noise = np.random.normal(size=(BATCH, 1)) + self.own.normal(size=(BATCH, 1))
            return self.x[rows], self.y[rows] + noise.astype("float32") * 0.1

        def on_epoch_end(self):
            np.random.shuffle(self.order)

    model = keras_model([keras.layers.GaussianNoise(0.1)])
    model.compile("rmsprop", "mse", metrics=["mae"])
    return model, (Shuffled(),), {"shuffle": True}


def generator():
    """A Python generator that draws from the global random numbers."""
    model = keras_model()
    model.compile("adam", "mse")

    def batches():
        x, y = data()
        while True:
            order = np.random.permutation(SAMPLES)
            for start in range(0, SAMPLES, BATCH):
                rows = order[start : start + BATCH]
                yield x[rows], y[rows]

    return model, (batches(),), {"steps_per_epoch": SAMPLES // BATCH}


def pipeline():
    """tf.data, with a shuffle that nobody seeded: on PyTorch it draws for itself."""
    import tensorflow as tf

    model = keras_model()
    model.compile("adam", "mse")
    return (
        model,
        (tf.data.Dataset.from_tensor_slices(data()).shuffle(100, seed=4).batch(BATCH),),
        {},
    )


def loader(name):
    """A loader of PyTorch's, in epochs of its own length."""
    model = keras_model()
    model.compile("adam", "mse")
    return model, (loaders(name),), {}


def fitted(case):
    """Train a Keras model, twice."""
    import keras

    class Pause(keras.callbacks.Callback):
        """Time for the killer; and a callback that remembers something of its own."""

        def __init__(self):
            super().__init__()
            self.losses = []

        def on_train_batch_end(self, batch, logs=None):
            self.losses.append(float(logs["loss"]))
            time.sleep(PAUSE)

    if os.environ.get("KEPT_SEEDED", "1") == "1":
        keras.utils.set_random_seed(7)
    own = {f"loader_{n}": n for n in ("own_generator", "noisy", "rows", "workers", "own_order")}
    model, inputs, options = loader(own[case]) if case in own else globals()[case]()
    pause = Pause()
    options["callbacks"] = [pause, *options.get("callbacks", [])]
    first = model.fit(*inputs, epochs=EPOCHS - 1, verbose=0, **options)
    weights = [np.array(w) for w in model.get_weights()]
    later = {k: v for k, v in options.items() if k not in ("callbacks", "validation_data")}
    if case == "generator":  # Keras has looked ahead in it, and the next `fit` has not
        inputs = generator()[1]
    second = model.fit(*inputs, epochs=1, verbose=0, callbacks=[pause], **later)
    counts = next(v for v in model.variables if v.path.endswith("counts")).value
    logs = [v for history in (first, second) for v in history.history.values()]
    return counts, [*weights, *model.get_weights(), *[v.value for v in model.optimizer.variables],
                    *logs, pause.losses, np.random.random(3), torch.rand(3),
                    keras.random.uniform((), seed=None)]  # fmt: skip


def main():
    cases, out = sys.argv[1:]
    torch.set_num_threads(1)
    results = {}
    for case in cases.split("+"):
        kind, _, name = case.partition(":")
        counts, values = plain(name) if kind == "plain" else fitted(case)
        results[f"{case} counts"] = counts.detach().cpu().numpy().copy()
        for number, value in enumerate(values):
            value = value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value
            results[f"{case} {number}"] = np.array(value)
    if all(case.startswith("plain") for case in cases.split("+")):
        assert "keras" not in sys.modules
        assert "tensorflow" not in sys.modules
    np.savez(out, **results)
    print("finished", cases)


if __name__ == "__main__":
    main()
