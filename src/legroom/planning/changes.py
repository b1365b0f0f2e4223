"""The changes that make a model leaner: what each does, by its name, in words."""

from __future__ import annotations

import dataclasses

__all__ = ["CHANGES", "PRUNED_SHARE", "SlimChange"]

PRUNED_SHARE = 0.5  # of the weights, those nearest to zero


@dataclasses.dataclass(frozen=True)
class SlimChange:
    """A change.

    Attributes:
        id: The finding that proposes it.
        text: What it does, in a sentence.
        code: How it is written by hand; empty where `legroom.slim` is shorter.
    """

    id: str
    text: str
    code: str = ""


CHANGES = {
    "average_pooling": SlimChange(
        "LR301", "An average over all places instead of Flatten, so that the dense layer behind it "
        "needs one weight for each channel, and not for each pixel of it.",
    ),
    "separable": SlimChange(
        "LR302", "Separable convolutions instead of full ones: each channel on its own, then a "
        "mixture of channels.",
    ),
    "factorized_embedding": SlimChange(
        "LR303", "A quarter of the features in the embedding, and a dense layer that makes the old "
        "number out of them.",
    ),
    "hashed_embedding": SlimChange(
        "LR303", "A quarter of the rows in the embedding, found by a hash of the number, so that "
        "several words share one.",
    ),
    "bottleneck": SlimChange(
        "LR304", "A narrow layer before the heaviest dense one: two small matrices instead of a "
        "large one.",
    ),
    "fewer_units": SlimChange("LR305", "Half the units in the heaviest dense layer."),
    "smaller_input": SlimChange(
        "LR306", "A smaller input: half the height and width, or half the length.",
    ),
    "bfloat16": SlimChange(
        "LR307", "Half precision: computing in bfloat16; weights stay float32.",
        'keras.config.set_dtype_policy("mixed_bfloat16")  # before the model is made',
    ),
    "float16": SlimChange(
        "LR307", "Half precision: computing in float16, with a scaled loss; weights stay float32.",
        'keras.config.set_dtype_policy("mixed_float16")  # before the model is made',
    ),
    "sgd": SlimChange(
        "LR308", "SGD, which keeps nothing beside the weights.",
        'model.compile(optimizer="sgd", …)',
    ),
    "eight_bits": SlimChange(
        "LR310", "What layers keep for their gradients in eight bits, and each of them run once "
        "more in the backward pass.",
    ),
}  # fmt: skip
