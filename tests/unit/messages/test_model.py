"""A message together with the model that was trained: layer, axes, batch, remedies."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from legroom.messages import Diagnosis
from legroom.messages.diagnosis import Remedy
from legroom.messages.explain import explain
from legroom.messages.layers import LayerFacts
from legroom.messages.model import Advice

JOB = "/job:localhost/replica:0/task:0/device:GPU:0"
LAYERS = (
    LayerFacts("conv2d", "Conv2D", ((None, 64, 64, 3),), ((None, 62, 62, 32),)),
    LayerFacts("conv2d_1", "Conv2D", ((None, 62, 62, 32),), ((None, 60, 60, 64),)),
    LayerFacts("flatten", "Flatten", ((None, 60, 60, 64),), ((None, 230400),)),
    LayerFacts(
        "dense", "Dense", ((None, 230400),), ((None, 512),), (("kernel", (230400, 512)),)
    ),
)  # fmt: skip


@dataclasses.dataclass
class Model:
    """A model at hand that remembers what it was asked."""

    title: str = "m.keras"
    layers: tuple[LayerFacts, ...] = LAYERS
    batch_size: int | None = None
    asked: list[tuple[int | None, int | None, str | None]] = dataclasses.field(default_factory=list)

    def advise(self, batch: int | None, limit_bytes: int | None, device: str | None) -> Advice:
        self.asked.append((batch, limit_bytes, device))
        return Advice(
            "It needs 5 GB.",
            (
                Remedy("small", bytes_saved=10, exact=False, predicted=True),
                Remedy("large", bytes_saved=1000, exact=False, predicted=True),
                Remedy("same training", bytes_saved=990, predicted=True),
            ),
        )


def oom(shape: str, node: str = "") -> str:
    where = f"\n\t [[{{{{node {node}}}}}]]" if node else ""
    return (
        f"OOM when allocating tensor with shape[{shape}] and type float on {JOB} by allocator "
        f"GPU_0_bfc{where}"
    )


def read(text: str, **settings: int) -> tuple[Diagnosis, Model]:
    model = Model(**settings)
    return explain(text, model), model


def test_axes_are_named_and_the_batch_is_found() -> None:
    diagnosis, model = read(oom("16,62,62,32", "sequential/conv2d/convolution"))
    assert diagnosis.layer == "conv2d"
    assert (
        "16 × 62 × 62 × 32 × 4 B = 7.87 MB: batch 16, height 62, width 62, filters 32, the output "
        "of conv2d (Conv2D)." in diagnosis.story
    )
    assert "It needs 5 GB." in diagnosis.story
    assert model.asked == [(16, None, "GPU:0")]


def test_remedies_are_the_predicted_ones_in_the_order_of_who_predicted_them() -> None:
    diagnosis, _ = read(oom("16,62,62,32", "sequential/conv2d/convolution"))
    assert [one.text for one in diagnosis.remedies] == ["small", "large", "same training"]


def test_a_scope_that_was_made_unique() -> None:
    """Keras calls a model twice in one graph: the second time it is conv2d_1_2."""
    diagnosis, _ = read(oom("16,60,60,64", "sequential_1/conv2d_1_2/convolution"))
    assert diagnosis.layer == "conv2d_1"


def test_the_class_instead_of_the_name() -> None:
    text = (
        "Exception encountered when calling Conv2D.call().\n\n"
        + oom("16,60,60,64")
        + " [Op:Conv2D]"
    )
    diagnosis, model = read(text)
    assert diagnosis.layer == "conv2d_1"
    # This one is what the first makes, and what the second is called with.
    assert read(text.replace("60,60,64", "62,62,32"))[0].layer == "conv2d"
    assert model.asked == [(16, None, "GPU:0")]


def test_no_name_but_a_shape_that_one_layer_has() -> None:
    diagnosis, model = read(oom("16,230400"))
    assert model.asked == [(16, None, "GPU:0")]
    assert diagnosis.layer == "flatten"


def test_weights_in_the_optimizer() -> None:
    diagnosis, model = read(oom("230400,512", "adam/mul_3"), batch_size=16)
    assert diagnosis.layer == "dense"
    assert "inputs 230400, units 512, the kernel of dense (Dense)" in diagnosis.story
    assert model.asked == [(16, None, "GPU:0")]


@pytest.mark.parametrize("node", ["model/encoder_7/MatMul", "model/conv2d_9/convolution"])
def test_a_layer_that_the_model_does_not_have(node: str) -> None:
    diagnosis, model = read(oom("16,99,99,7", node))
    layer = node.split("/")[1]
    assert diagnosis.layer == layer  # what the text says stays
    assert f"m.keras has no layer {layer}" in diagnosis.story
    assert not model.asked
    assert not any(remedy.predicted for remedy in diagnosis.remedies)


def test_a_missing_layer_with_the_shape_of_another() -> None:
    diagnosis, _ = read(oom("16,60,60,64", "model/block_7/convolution"))
    assert "has no layer block_7" in diagnosis.story


def test_the_batch_that_the_user_said() -> None:
    _, model = read("CUDA_ERROR_OUT_OF_MEMORY: out of memory\n" + oom("", "x/conv2d/y"))
    assert model.asked == [(None, None, "GPU:0")]
    _, model = read(oom("", "x/conv2d/y"), batch_size=8)
    assert model.asked == [(8, None, "GPU:0")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "W cpu_allocator_impl.cc:82] Allocation of 900 exceeds 10% of free system memory.",
        "No space left on device",
        "Unable to allocate 201. GiB for an array with shape (9, 9) and data type float64",
        oom("60000,64,64,3") + " [Op:_EagerConst]",
    ],
)
def test_what_no_layer_asked_for(text: str) -> None:
    diagnosis, _ = read(text)
    assert diagnosis.layer is None
    assert "has no layer" not in diagnosis.story


def test_names_in_a_model_are_data() -> None:
    evil = "conv\x1b[2J\n<b>\u202e"
    model = Model(
        title=f"m{evil}.keras", layers=(dataclasses.replace(LAYERS[0], name=evil),)
    )  # fmt: skip
    diagnosis = explain(oom("16,62,62,32"), model)
    assert diagnosis.layer == "conv [2J <b>"
    assert all(line.isprintable() for line in diagnosis.story.splitlines())
    assert len(diagnosis.story.splitlines()) == 3


shapes = st.lists(st.none() | st.integers(0, 9), max_size=6).map(tuple)
kinds = st.sampled_from(
    ["Conv2D", "Conv1D", "Dense", "LSTM", "GRU", "Embedding", "MultiHeadAttention", "Reshape", ""]
)
layers = st.builds(
    LayerFacts,
    name=st.text(max_size=5),
    kind=kinds,
    inputs=st.lists(shapes, max_size=2).map(tuple),
    outputs=st.lists(shapes, max_size=2).map(tuple),
    weights=st.lists(
        st.tuples(st.text(max_size=3), st.lists(st.integers(0, 9), max_size=5).map(tuple)),
        max_size=2,
    ).map(tuple),
    channels_first=st.booleans(),
    heads=st.none() | st.integers(0, 4),
)


@given(st.lists(layers, max_size=3), st.lists(st.integers(0, 9), max_size=6), st.text(max_size=9))
def test_any_model_and_any_shape(found: list[LayerFacts], shape: list[int], node: str) -> None:
    model = Model(layers=tuple(found), batch_size=3)
    diagnosis = explain(oom(",".join(map(str, shape)), f"m/{node}/Conv2D"), model)
    assert diagnosis.is_oom
