"""What is advised fits what failed, and what legroom can do."""

from __future__ import annotations

import pytest

from legroom.messages import diagnose_text

OOM = (
    "ResourceExhaustedError: OOM when allocating tensor with shape[{shape}] and type float on "
    "/job:localhost/replica:0/task:0/device:GPU:0 by allocator GPU_0_bfc [[{{{{node {node}}}}}]]"
)
EAGER = "OOM when allocating tensor with shape[20000,128] and type float on /device:GPU:0 [Op:{}]"
TORCH = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total "
    "capacity of 15.00 GiB of which 1.00 GiB is free."
)
BY_KERAS = f"OutOfMemoryError: Exception encountered when calling Softmax.call().\n\n{TORCH}"
JAX = "jax.errors.JaxRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 2618758148 bytes."


def advised(text: str) -> str:
    return " ".join(str(remedy) for remedy in diagnose_text(text).remedies)


@pytest.mark.parametrize(
    ("text", "said", "unsaid"),
    [
        (
            OOM.format(shape="20000,128", node="gradient_tape/model/embedding/Reshape"),
            "A smaller vocabulary",
            "10000",
        ),
        (OOM.format(shape="256,4096", node="model/dense/MatMul"), "batch_size=128", "vocabulary"),
        (
            OOM.format(shape="64,300,128", node="model/embedding/GatherV2"),
            "batch_size=32",
            "vocabulary",
        ),
        (EAGER.format("StatelessRandomUniformV2"), "batch_size=…", "10000"),
        (TORCH, "@legroom.step", "model.fit"),
        (TORCH, "DataLoader(…, batch_size=…)", "model.fit"),
        (BY_KERAS, "Run it in slices", "@legroom.step"),
        (BY_KERAS, "model.fit(x, y, batch_size=…)", "DataLoader"),
        (JAX, "@legroom.step  # above @jax.jit", "backward()"),
    ],
    ids=["table", "dense", "embedded", "drawn", "torch", "loader", "keras", "fit", "jax"],
)
def test_advice(text: str, said: str, unsaid: str) -> None:
    advice = advised(text)
    assert said in advice
    assert unsaid not in advice
