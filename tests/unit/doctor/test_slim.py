"""Leaner copies of models: what changes, what stays, and that they train."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.doctor.diet import _smaller_after_training, quick_model_findings
from legroom.planning.changes import CHANGES


def images() -> Any:
    model = keras.Sequential([
        keras.Input((16, 16, 3)), layers.Conv2D(16, 3, activation="relu", name="first"),
        layers.Conv2D(32, 3, activation="relu", name="second"), layers.Flatten(name="flat"),
        layers.Dense(64, activation="relu", name="wide"), layers.Dense(10, name="classes"),
    ])  # fmt: skip
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, metrics=["accuracy"])
    return model


def texts() -> Any:
    words = keras.Input((12,), dtype="int32")
    x = layers.Embedding(500, 32, mask_zero=True, name="words")(words)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(words, layers.Dense(1, name="last")(x))
    model.compile("adam", "mse")
    return model


def trained(model: Any) -> list[float]:
    shape, rng = model.input_shape[1:], np.random.default_rng(0)
    if model.inputs[0].dtype == "int32":
        x, y = rng.integers(0, 500, (16, *shape)), rng.random((16, 1))
    else:
        x, y = rng.random((16, *shape)), rng.integers(0, 10, 16)
    model.run_eagerly = True  # nothing is traced: it is quicker for a few steps
    return model.fit(x, y, batch_size=8, verbose=0).history["loss"]  # type: ignore[no-any-return]


# Which model, and which layers begin anew.
EXPECTED = {
    "average_pooling": (images, {"wide"}),
    "separable": (images, {"second"}),
    "factorized_embedding": (texts, set()),
    "hashed_embedding": (texts, {"words"}),
    "bottleneck": (images, set()),
    "fewer_units": (images, {"wide", "classes"}),
    "smaller_input": (images, {"wide"}),
    "bfloat16": (images, set()),
    "float16": (images, set()),
    "sgd": (images, set()),
    "eight_bits": (images, set()),
}


def test_every_change_is_tested() -> None:
    assert set(EXPECTED) == set(CHANGES)


@pytest.mark.parametrize("change", EXPECTED)
def test_a_change(change: str) -> None:
    make, fresh = EXPECTED[change]
    model = make()
    before = [np.array(weight) for weight in model.get_weights()]
    made = legroom.slim(model, change=change)
    assert made is not model
    assert all(np.array_equal(a, b) for a, b in zip(before, model.get_weights(), strict=True))
    kept = {layer.name: layer for layer in model.layers}
    for layer in made.layers:
        source = kept.get(layer.name)
        if source is None or not source.weights or layer.name in fresh:
            continue
        if [w.shape for w in layer.weights] == [w.shape for w in source.weights]:
            pairs = zip(layer.get_weights(), source.get_weights(), strict=True)
            assert all(np.array_equal(a, b) for a, b in pairs), layer.name
        else:
            assert change in ("factorized_embedding", "bottleneck"), layer.name
    assert type(made.optimizer).__name__ == ("SGD" if change == "sgd" else "Adam") or (
        change == "float16"  # with a scaled loss around it
    )
    same_size = change in ("bfloat16", "float16", "sgd", "eight_bits")
    assert (made.count_params() == model.count_params()) == same_size
    assert made.count_params() <= model.count_params()
    assert all(np.isfinite(trained(made)))


def test_matrices_taken_apart_are_near_the_one_there_was() -> None:
    model = texts()
    low_rank = np.random.default_rng(0).normal(size=(500, 6)) @ np.ones((6, 32))
    model.get_layer("words").set_weights([low_rank])
    made = legroom.slim(model, change="factorized_embedding")
    x = np.random.default_rng(1).integers(0, 500, (4, 12))
    assert np.allclose(made(x), model(x), atol=1e-4)
    assert [layer.name for layer in made.layers].count("words_narrow") == 1


def test_int8_is_a_quarter_of_what_it_changes() -> None:
    model = texts()
    trained(model)
    made = legroom.slim(model, change="int8")
    assert {str(weight.dtype) for weight in made.get_layer("words").weights} >= {"int8"}
    x = np.random.default_rng(1).integers(0, 500, (4, 12))
    assert np.allclose(made(x), model(x), atol=0.05)


def test_a_pruned_copy_has_half_the_weights_and_a_smaller_file() -> None:
    from legroom.backends.keras.models.rebuilding import compressed_bytes

    model = texts()
    made = legroom.slim(model, change="pruned")
    before, after = model.get_layer("words").get_weights()[0], made.get_layer("words").get_weights()
    assert np.mean(after[0] == 0) == pytest.approx(0.5, abs=0.01)
    assert np.array_equal(after[0][after[0] != 0], before[after[0] != 0]), "the others stay"
    assert compressed_bytes(made) < 0.7 * compressed_bytes(model)


def test_what_a_trained_model_can_become_is_weighed() -> None:
    words = keras.Input((8,), dtype="int32")
    pooled = layers.GlobalAveragePooling1D()(layers.Embedding(60_000, 64)(words))
    model = keras.Model(words, layers.Dense(1)(pooled))
    whole = 60_000 * 64 * 4
    sizes = {f.data["change"]: f.data["weights_after"] for f in _smaller_after_training(model)}
    assert sizes["int8"] == pytest.approx(whole / 4, rel=0.1)
    assert sizes["tflite"] == pytest.approx(whole / 4, rel=0.1)
    assert sizes["pruned"] < 0.7 * whole


def test_a_hashed_embedding_keeps_its_mask() -> None:
    made = legroom.slim(texts(), change="hashed_embedding")
    assert made.get_layer("words").input_dim == 125
    hashed = keras.Model(made.input, made.get_layer("words_hashed").output)(np.arange(12)[None])
    assert int(hashed[0, 0]) == 0, "what is masked stays masked"
    assert int(np.min(hashed[0, 1:])) > 0


class Own(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = layers.Dense(3)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_what_it_refuses() -> None:
    with pytest.raises(ValueError, match=r"no change 'thinner'\. Expected one of average_pooling"):
        legroom.slim(texts(), change="thinner")
    with pytest.raises(ValueError, match="nothing that 'average_pooling' would change"):
        legroom.slim(texts(), change="average_pooling")
    own = Own()
    own(np.zeros((2, 4)))
    with pytest.raises(legroom.UnsupportedModelError, match="its own code only"):
        legroom.slim(own, change="sgd")


def test_weights_behind_a_flatten_are_seen_at_once() -> None:
    model = keras.Sequential([
        keras.Input((64, 64, 8)), layers.Flatten(), layers.Dense(256), layers.Dense(10),
    ])  # fmt: skip
    model.compile("adam", "mse")
    (found,) = quick_model_findings(model, "train.py:7")
    kernel = 64 * 64 * 8 * 256 * 4
    assert found.id == "LR301"
    assert found.bytes == pytest.approx(4 * kernel, rel=0.01)  # its gradient, and two slots
    assert quick_model_findings(texts(), "") == quick_model_findings(images(), "") == []


def normalized(x: Any) -> Any:
    """With statistics, a seed, and a mask that goes through."""
    inputs = keras.Input(x.shape[1:])
    y = layers.Masking()(inputs)
    y = layers.Dense(16, activation="relu")(y)
    y = layers.Dropout(0.2, seed=3)(layers.BatchNormalization()(y))
    y = layers.LayerNormalization()(layers.Dense(16)(y))
    model = keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(y)))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def test_in_eight_bits_the_model_computes_the_same_and_its_gradients_are_near() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 6, 8)).astype("float32"), rng.integers(0, 10, 32)
    x[:, 4:] = 0.0
    keras.utils.set_random_seed(1)
    model = normalized(x)
    lean = legroom.slim(model, change="eight_bits")
    before = model.get_weights()
    assert np.array_equal(lean.predict(x, verbose=0), model.predict(x, verbose=0))
    one, other = (m.fit(x, y, batch_size=32, verbose=0).history["loss"][0] for m in (model, lean))
    assert one == pytest.approx(other, rel=1e-6)
    kinds = [weight.path.split("/")[-1] for weight in model.weights]
    for kind, old, exact, rounded in zip(
        kinds, before, model.get_weights(), lean.get_weights(), strict=True
    ):
        if kind.startswith("moving") or kind == "seed_generator_state":
            assert np.array_equal(exact, rounded), kind
            continue
        moved, nearly = (exact - old).ravel(), (rounded - old).ravel()
        off = np.linalg.norm(moved - nearly) / max(np.linalg.norm(moved), 1e-6)
        assert off < 0.1, (kind, off)
    assert any(not np.array_equal(a, b) for a, b in zip(
        model.get_weights(), lean.get_weights(), strict=True
    ))  # fmt: skip
    model.set_weights(lean.get_weights())


def test_what_is_kept_in_eight_bits_is_near_what_it_was() -> None:
    import tensorflow as tf

    from legroom.backends.tensorflow.recompute.eight_bits import _Packing

    packing = _Packing()
    x = tf.random.stateless_normal((64, 5, 3), [1, 2]) * [1.0, 100.0, 0.0] + [0.0, -7.0, 2.5]
    kept = packing.pack([x, tf.constant([True, False])])
    assert kept[0].dtype == tf.uint8
    again, mask = packing.unpack(kept)
    spread = tf.reduce_max(x, [0, 1]) - tf.reduce_min(x, [0, 1])
    assert np.all(np.abs(again - x) <= spread / 255 / 2 + 1e-4)
    assert mask.dtype == tf.bool
