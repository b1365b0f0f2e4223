"""`fit` called again and again on one model, as people write it: nothing is traced twice.

Every case is trained plain as well, and the weights are compared. Traces are counted by the calls
of the model's own `train_step`: in a graph it is called when it is traced, and never else.
"""

from __future__ import annotations

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import legroom
from legroom.backends.tensorflow.device import pool

pytestmark = pytest.mark.on_tensorflow("is about traces of TensorFlow")

RNG = np.random.default_rng(0)
N = 44  # batches of 16, 16 and 12
X = RNG.normal(size=(N, 8)).astype("float32")
Y = RNG.integers(0, 3, N)


@keras.saving.register_keras_serializable("tests")
class Counting(keras.Sequential):
    """A model that counts the traces of its steps."""

    traces = 0

    def train_step(self, data):
        Counting.traces += 1
        return super().train_step(data)

    def test_step(self, data):
        Counting.traces += 1
        return super().test_step(data)

    def predict_step(self, data):
        Counting.traces += 1
        return super().predict_step(data)


@pytest.fixture(autouse=True)
def _seeded():
    keras.utils.set_random_seed(3)
    Counting.traces = 0


def build(width=16):
    model = Counting(
        [keras.Input((8,)), layers.Dense(width, "relu", name="one"), layers.Dense(3, "softmax")]
    )
    compiled(model)
    return model


def compiled(model):
    optimizer = keras.optimizers.Adam(0.01)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])


def plain_fit(model, **options):
    return model.fit(X, Y, batch_size=16, shuffle=False, verbose=0, **options)


def guarded_fit(model, slice_size=None, **options):
    return legroom.fit(
        model, X, Y, batch_size=16, shuffle=False, verbose=0, slice_size=slice_size, **options
    )


def traces(call):
    before = Counting.traces
    call()
    return Counting.traces - before


def twin(model):
    """The same model, trained by Keras alone."""
    other = build()
    other.set_weights(model.get_weights())
    return other


def assert_same(model, plain):
    for one, other in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("slice_size", [None, 5])
def test_only_the_first_fit_traces(slice_size):
    model = build()
    plain = twin(model)
    plain_fit(plain)
    assert traces(lambda: guarded_fit(model, slice_size)) > 0
    for _ in range(3):
        plain_fit(plain)
        assert traces(lambda: guarded_fit(model, slice_size)) == 0
    assert_same(model, plain)


@pytest.mark.parametrize("slice_size", [None, 5, 13])  # with 13 the short batch runs whole
def test_an_epoch_with_a_short_last_batch_traces_nothing_after_the_first(slice_size):
    model = build()
    plain = twin(model)
    legroom.guard(model, slice_size=slice_size)
    validated = {"validation_data": (X[:30], Y[:30])}
    history = plain_fit(model, **validated)
    assert history.legroom.slice_size == (slice_size or 16)
    assert traces(lambda: plain_fit(model, epochs=3, **validated)) == 0
    plain_fit(plain)
    plain_fit(plain, epochs=3)
    assert_same(model, plain)


def test_test_and_predict_steps_are_kept_too():
    model = build()
    for _ in range(2):
        guarded_fit(model, 5, validation_data=(X[:20], Y[:20]))
    legroom.guard(model)
    model.evaluate(X, Y, batch_size=16, verbose=0)
    expected = model.predict(X, batch_size=16, verbose=0)
    assert traces(lambda: model.evaluate(X, Y, batch_size=16, verbose=0)) == 0
    seen = []
    assert traces(lambda: seen.append(model.predict(X, batch_size=16, verbose=0))) == 0
    np.testing.assert_array_equal(seen[0], expected)


def test_plain_and_guarded_fits_in_turn_trace_once_each():
    model = build()
    plain = twin(model)
    plain_fit(model)
    own = model.train_function
    guarded_fit(model)
    assert model.train_function is own, "Keras's own function, with what it has traced"
    assert traces(lambda: (plain_fit(model), guarded_fit(model), plain_fit(model))) == 0
    for _ in range(5):
        plain_fit(plain)
    assert_same(model, plain)


def test_after_legroom_fit_the_model_is_plain():
    model = build()
    guarded_fit(model)
    assert not type(model.train_function).__module__.startswith("legroom")
    assert model.predict_function is None
    assert not hasattr(plain_fit(model), "legroom")


def test_other_options_search_again_but_trace_only_what_is_new():
    model = build()
    plain = twin(model)
    guarded_fit(model)
    assert traces(lambda: guarded_fit(model, exact=True)) == 0, "the whole step is the same"
    assert traces(lambda: guarded_fit(model, 5)) > 0
    assert traces(lambda: guarded_fit(model, 5)) == 0
    assert traces(lambda: guarded_fit(model)) == 0
    for _ in range(5):
        plain_fit(plain)
    assert_same(model, plain)


def test_a_guarded_model_has_its_functions_back_after_another_fit():
    model = legroom.guard(build(), slice_size=5)
    plain = twin(model)
    plain_fit(model)
    guarded = model.train_function
    guarded_fit(model)
    assert model.train_function is guarded
    assert traces(lambda: plain_fit(model)) == 0
    for _ in range(3):
        plain_fit(plain)
    assert_same(model, plain)


def compile_again(model):
    compiled(model)


def take_away(model):
    model.train_function = None


def by_force(model):
    model.make_train_function(force=True)


@pytest.mark.parametrize(
    ("reset", "guarded_first", "slice_size"),
    [
        (compile_again, True, None),
        (compile_again, False, 5),
        (take_away, True, 5),
        (by_force, False, None),
    ],
)
def test_what_resets_keras_functions_resets_ours(reset, guarded_first, slice_size):
    model = build()
    plain = twin(model)
    (guarded_fit if guarded_first else plain_fit)(model)
    plain_fit(plain)
    for one in (model, plain):
        one.get_layer("one").trainable = False
        reset(one)
    frozen = model.get_weights()[0]
    assert traces(lambda: guarded_fit(model, slice_size)) > 0
    plain_fit(plain)
    np.testing.assert_array_equal(model.get_weights()[0], frozen)
    assert traces(lambda: plain_fit(model)) > 0, "Keras's own was reset as well"
    plain_fit(plain)
    np.testing.assert_array_equal(model.get_weights()[0], frozen)
    assert_same(model, plain)


def test_compiled_again_while_guarded_keras_function_is_forgotten():
    model = build()
    plain_fit(model)
    legroom.guard(model)
    model.get_layer("one").trainable = False
    compiled(model)
    legroom.uninstall()
    frozen = model.get_weights()[0]
    plain_fit(model)
    np.testing.assert_array_equal(model.get_weights()[0], frozen)


@pytest.mark.parametrize(
    ("first", "sizes"), [(True, (None, None)), (True, (5, 4)), (True, (None, 5)), (False, (5, 4))]
)
def test_freezing_without_compiling_changes_nothing_as_in_keras(first, sizes):
    """Keras reads `trainable` when it traces; slices of another size are traced later than that."""
    model = build()
    plain = twin(model)
    for one in (model, plain):
        one.get_layer("one").trainable = first
    then = not first
    guarded_fit(model, sizes[0])
    plain_fit(plain)
    for one in (model, plain):
        one.get_layer("one").trainable = then
    before = model.get_weights()[0]
    guarded_fit(model, sizes[1])
    plain_fit(plain)
    assert_same(model, plain)
    assert np.array_equal(model.get_weights()[0], before) is not first
    assert model.get_layer("one").trainable is then
    assert [v.trainable for v in model.get_layer("one")._trainable_variables] == [then, then]


def test_each_report_is_of_its_own_call():
    model = build()
    guarded_fit(model, 5)
    again = guarded_fit(model, 5).legroom
    assert (again.slice_size, again.batch_size, again.samples_seen) == (5, 16, N)
    whole = guarded_fit(model).legroom
    assert (whole.slice_size, whole.batch_size, whole.samples_seen) == (16, 16, N)
    assert not whole.sliced


def test_the_cache_goes_with_its_model():
    model = build()
    guarded_fit(model)
    guarded_fit(model, 5)
    plain_fit(model)
    legroom.guard(model, slice_size=4)
    plain_fit(model, validation_data=(X, Y))
    gone = weakref.ref(model)
    del model
    keras.backend.clear_session()
    legroom.release()
    gc.collect()
    assert gone() is None


def held(call):
    """The device memory that is in use after a call and was not before."""
    gc.collect()
    before = pool.in_use_bytes()
    if before is None:
        pytest.skip("this allocator keeps no count")
    call()
    gc.collect()
    return pool.in_use_bytes() - before


def test_sums_of_gradients_are_freed_between_fits():
    model = Counting([keras.Input((8,)), *(layers.Dense(1000) for _ in range(3)), layers.Dense(3)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    weights = sum(w.nbytes for w in model.get_weights())
    plain_fit(model)
    for _ in range(2):
        assert held(lambda: guarded_fit(model, 5)) < weights / 4
