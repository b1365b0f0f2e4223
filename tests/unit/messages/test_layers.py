"""What the axes of a layer's tensors are called, by the layer's kind."""

from __future__ import annotations

import pytest

from legroom.messages.layers import LayerFacts, named_tensor, named_weight

CONV = LayerFacts(
    "conv", "Conv2D", ((None, 64, 48, 3),), ((None, 62, 46, 32),),
    (("kernel", (3, 3, 3, 32)), ("bias", (32,))),
)  # fmt: skip
CONV_FIRST = LayerFacts(
    "conv", "Conv2D", ((None, 3, 64, 48),), ((None, 32, 62, 46),), channels_first=True
)
CONV_1D = LayerFacts("c", "Conv1D", ((None, 100, 8),), ((None, 98, 16),), (("kernel", (3, 8, 16)),))
CONV_UP = LayerFacts(
    "up", "Conv2DTranspose", ((None, 8, 8, 64),), ((None, 16, 16, 32),),
    (("kernel", (3, 3, 32, 64)),),
)  # fmt: skip
DENSE = LayerFacts(
    "fc", "Dense", ((None, 9216),), ((None, 4096),), (("kernel", (9216, 4096)), ("bias", (4096,)))
)
DENSE_STEPS = LayerFacts("mlp", "Dense", ((None, 128, 256),), ((None, 128, 1024),))
EMBEDDING = LayerFacts(
    "words", "Embedding", ((None, 128),), ((None, 128, 256),), (("embeddings", (32000, 256)),)
)
LSTM = LayerFacts(
    "lstm", "LSTM", ((None, 100, 64),), ((None, 100, 128),),
    (("kernel", (64, 512)), ("recurrent_kernel", (128, 512))),
)  # fmt: skip
ATTENTION = LayerFacts(
    "mha", "MultiHeadAttention", ((None, 128, 256),), ((None, 128, 256),),
    (("kernel", (256, 8, 32)),), heads=8,
)  # fmt: skip
NORM = LayerFacts("bn", "BatchNormalization", ((None, 62, 46, 32),), ((None, 62, 46, 32),))
OPEN = LayerFacts("conv", "Conv2D", ((None, None, None, 3),), ((None, None, None, 32),))
RESHAPE = LayerFacts("r", "Reshape", ((None, 64),), ((None, 4, 4, 4),))


@pytest.mark.parametrize(
    ("layer", "shape", "what", "axes", "batch"),
    [
        (CONV, (16, 62, 46, 32), "output", "batch height width filters", 16),
        (CONV, (16, 64, 48, 3), "input", "batch height width channels", 16),
        # As TensorFlow turns it on a GPU.
        (CONV, (16, 32, 62, 46), "output", "batch filters height width", 16),
        (CONV, (3, 3, 3, 32), "kernel", "kernel_height kernel_width channels filters", None),
        (CONV, (32,), "bias", "channels", None),
        (CONV_FIRST, (16, 32, 62, 46), "output", "batch filters height width", 16),
        (CONV_1D, (16, 98, 16), "output", "batch time_steps filters", 16),
        (CONV_1D, (3, 8, 16), "kernel", "kernel channels filters", None),
        (CONV_UP, (3, 3, 32, 64), "kernel", "kernel_height kernel_width filters channels", None),
        (DENSE, (64, 4096), "output", "batch units", 64),
        (DENSE, (9216, 4096), "kernel", "inputs units", None),
        (DENSE_STEPS, (8, 128, 1024), "output", "batch time_steps units", 8),
        (DENSE_STEPS, (1024, 1024), "output", "batch_×_time_steps units", 8),
        (EMBEDDING, (8, 128, 256), "output", "batch time_steps units", 8),
        (EMBEDDING, (32000, 256), "embeddings", "entries units", None),
        (LSTM, (32, 100, 128), "output", "batch time_steps units", 32),
        (LSTM, (100, 32, 128), "steps", "time_steps batch units", 32),
        (LSTM, (32, 512), "state", "batch 4_gates_×_units", 32),
        (ATTENTION, (4, 8, 128, 128), "attention scores", "batch heads query_steps key_steps", 4),
        (ATTENTION, (4, 128, 8, 32), "projection", "batch time_steps heads head_size", 4),
        (NORM, (16, 62, 46, 32), "output", "batch height width channels", 16),
        (OPEN, (16, 500, 333, 32), "output", "batch height width filters", 16),
        (RESHAPE, (2, 4, 4, 4), "output", "batch axis_1 axis_2 axis_3", 2),
    ],
)
def test_axes(
    layer: LayerFacts, shape: tuple[int, ...], what: str, axes: str, batch: int | None
) -> None:
    found = named_tensor(layer, shape)
    assert found is not None
    assert (found.what, found.batch) == (what, batch)
    assert found.axes == tuple(axis.replace("_", " ") for axis in axes.split())
    assert len(found.axes) == len(shape)


@pytest.mark.parametrize(
    ("layer", "shape", "batch"),
    [
        (CONV, (16, 62, 46, 33), None),
        (CONV, (16, 62, 46, 32), 8),
        (DENSE, (7, 5), None),
        (DENSE_STEPS, (1000, 1024), None),  # no whole number of samples
        (LayerFacts("x", "Custom"), (1, 2, 3), None),
    ],
)
def test_another_layers_tensor(layer: LayerFacts, shape: tuple[int, ...], batch: int) -> None:
    assert named_tensor(layer, shape, batch) is None


def test_weights_alone() -> None:
    assert named_weight(DENSE, (9216, 4096)) is not None
    assert named_weight(DENSE, (64, 4096)) is None
