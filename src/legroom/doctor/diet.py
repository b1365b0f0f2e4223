"""What a leaner model saves: each change tried on the model's architecture, and its peak predicted.

Nothing is trained, and the model is left as it is: the changed ones have no memory, and two small
steps of each are run by a process of its own, as for `legroom.estimate`.
"""

from __future__ import annotations

import contextlib
from typing import Any

from legroom.backends.base import current
from legroom.core.findings import Finding
from legroom.core.units import format_bytes
from legroom.doctor.catalog import finding
from legroom.planning.advice import advise
from legroom.planning.changes import CHANGES, PRUNED_SHARE
from legroom.planning.make import read_budget
from legroom.prediction.sources import read_batch_size

__all__ = ["check_model", "flattened_weights", "quick_model_findings"]

_WORTH_BYTES = 4_000_000  # less is no proposal
_MOSTLY = 0.5  # of all weights, between Flatten and a dense layer: more than a proposal
_LARGE = 16_000_000
_LAYERS = 5
_TOO_LARGE = 1_000_000_000  # of weights: copies of more are not made to be weighed
_ACCURACY = "Train it, and compare the accuracy."


def check_model(
    model: Any,
    *,
    batch_size: int | None = None,
    data: Any = None,
    memory: str | int | None = None,
) -> list[Finding]:
    """Say which layers hold the memory of a training, and what each change would save.

    Args:
        model: A compiled Keras model.
        batch_size: The batch it is trained with; 32 without it.
        data: As for `legroom.estimate`.
        memory: What there is for it. With it, slices are proposed where the batch does not fit.

    Raises:
        UnsupportedModelError: If the model can't be asked about.
    """
    samples = read_batch_size(batch_size or 32)
    budget = None if memory is None else read_budget(memory, model)
    advice = advise(model, samples, budget, data=data, fewer_samples=memory is not None)
    models = current().models
    count, facts = models.parameters(model), models.layer_facts(model)
    flat, before = flattened_weights(facts), advice.estimate
    found = [_largest_layers(model, before, {layer.name for layer in facts})]
    for change in advice.changes:
        saved = change.remedy.bytes_saved or 0
        if saved < _WORTH_BYTES:
            continue
        leaner = change.name in CHANGES
        heavy = change.name == "average_pooling" and flat > max(_MOSTLY * _weights(before), _LARGE)
        text = (
            f"{change.remedy.text} Predicted peak at a batch of {samples}: "
            f"{format_bytes(before.peak_bytes)} → {format_bytes(change.peak_bytes)}"
        )
        data = {
            "change": change.name, "batch_size": samples, "peak_before": before.peak_bytes,
            "peak_after": change.peak_bytes,
        }  # fmt: skip
        if leaner:
            text += f"; weights: {count:,} → {change.parameters:,}"
            data |= {"parameters_before": count, "parameters_after": change.parameters}
        found.append(
            finding(
                CHANGES[change.name].id if leaner else "LR311",
                f"{text}.",
                place=f"layer {change.layer}" if change.layer else f"model {model.name}",
                bytes=saved,
                fix=f'legroom.slim(model, change="{change.name}"). {_ACCURACY}'
                if leaner
                else str(change.remedy.command or change.remedy.code),
                severity="warning" if heavy else "note",
                data=data,
            )
        )
    return found + _smaller_after_training(model)


def quick_model_findings(model: Any, place: str) -> list[Finding]:
    """What is plain to see without a prediction: weights behind a Flatten that are most of all."""
    models = current().models
    total, flat = models.weight_bytes(model), flattened_weights(models.layer_facts(model))
    if flat <= max(_MOSTLY * total, _LARGE):
        return []
    optimizer = getattr(model, "optimizer", None)
    slots = 0 if optimizer is None else models.slot_bytes(optimizer, model) / max(1, total)
    costs = int(flat * (2 + slots))  # the weights, their gradient, and what is kept of each
    text = (
        f"{format_bytes(flat)} of the {format_bytes(total)} of weights in {model.name} are those "
        "of a dense layer behind a Flatten; with gradients and the optimizer's state that is "
        f"{format_bytes(costs)}."
    )
    fix = f'GlobalAveragePooling: legroom.slim(model, change="average_pooling"). {_ACCURACY}'
    return [finding("LR301", text, place=place, bytes=costs, fix=fix)]


def flattened_weights(layers: Any) -> int:
    """The bytes of the dense layers that directly follow a Flatten."""
    sizes = {
        shape[-1]
        for layer in layers
        if layer.kind == "Flatten" and len(layer.inputs) == 1 and len(layer.inputs[0]) > 2
        for shape in layer.outputs
    }
    return sum(
        4 * shape[0] * shape[1]
        for layer in layers
        if layer.kind == "Dense"
        for _, shape in layer.weights
        if len(shape) == 2 and shape[0] in sizes
    )


def _largest_layers(model: Any, before: Any, names: set[str]) -> Finding:
    held = [(name, size) for name, size in before.layers if name in names]
    largest = [f"{name} {format_bytes(size)}" for name, size in held[:_LAYERS]]
    parts = [f"{name} {format_bytes(size)}" for name, size in before.breakdown.items() if size]
    return finding(
        "LR300", f"A step of {model.name} at a batch of {before.batch_size} is predicted to need "
        f"{format_bytes(before.peak_bytes)} ({', '.join(parts)}). Held most by: "
        f"{', '.join(largest)}.",
        place=f"model {model.name}", bytes=before.peak_bytes, severity="note",
        data={"layers": [list(pair) for pair in held], "breakdown": before.breakdown,
              "peak_before": before.peak_bytes},
    )  # fmt: skip


def _smaller_after_training(model: Any) -> list[Finding]:
    """Copies for use: in int8, as a TFLite file, with zeros; each made, and weighed."""
    whole, made = current().models.weight_bytes(model), current().after_training
    if not _WORTH_BYTES <= whole <= _TOO_LARGE:
        return []
    found = []
    with contextlib.suppress(Exception):
        size, changed = made.int8_bytes(model)
        if changed:
            what = f"{', '.join(changed)} can hold int8"
            fix = 'legroom.slim(model, change="int8"), to use it.'
            found.append(_measured(model, "int8", what, whole, size, fix))
    with contextlib.suppress(Exception):
        size = made.tflite_bytes(model)
        fix = "tf.lite.TFLiteConverter.from_keras_model(model), with tf.lite.Optimize.DEFAULT."
        found.append(_measured(model, "tflite", "it can be a TFLite file", whole, size, fix))
    with contextlib.suppress(Exception):
        before, after = made.pruned_bytes(model, PRUNED_SHARE)
        what = "half of each matrix's weights can be zero, which a compressed file does not hold"
        fix = 'legroom.slim(model, change="pruned"), then a compressed file of its weights.'
        found.append(_measured(model, "pruned", what, before, after, fix))
    return [one for one in found if one.bytes >= _WORTH_BYTES]


def _measured(model: Any, change: str, what: str, before: int, after: int, fix: str) -> Finding:
    return finding(
        "LR309", f"Once it is trained, {what}: {format_bytes(before)} → {format_bytes(after)} of "
        "weights, measured.", place=f"model {model.name}", bytes=before - after, severity="note",
        fix=f"{fix} Compare the accuracy.",
        data={"change": change, "weights_before": before, "weights_after": after},
    )  # fmt: skip


def _weights(estimate: Any) -> int:
    return int(estimate.breakdown["weights"])
