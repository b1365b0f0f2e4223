"""The kinds of findings: their ids and titles. Each has a page in ``report/pages``."""

from __future__ import annotations

from typing import Any

from legroom.report import Finding  # with its renderers registered

__all__ = ["TITLES", "finding"]

TITLES = {
    # What grows.
    "LR101": "a new model each time, and the old ones stay",
    "LR102": "compiled again each time",
    "LR103": "traced again for every new argument",
    "LR104": "a new tf.function each time",
    "LR105": "tensors kept",
    "LR106": "a generator's data set made again each time",
    "LR107": "XLA keeps what it compiled",
    "LR108": "models kept",
    "LR109": "a container of your own grows",
    "LR110": "memory grows, and nothing of Python's holds it",
    # What the input costs.
    "LR201": "arrays copied into the pipeline",
    "LR202": "a shuffle buffer",
    "LR203": "a cache in memory",
    "LR204": "a prefetch buffer",
    "LR205": "buffers of parallel calls",
    "LR206": "batched twice",
    "LR207": "a cache on the wrong side of a random step",
    "LR208": "float64 by accident",
    "LR209": "small integers stored as floats",
    "LR210": "no prefetch",
    "LR211": "decoded before it is shuffled",
    "LR212": "everything loaded that could be streamed",
    # What a leaner model saves.
    "LR300": "what holds the memory of a step",
    "LR301": "most weights behind a Flatten",
    "LR302": "full convolutions",
    "LR303": "a wide embedding",
    "LR304": "a large dense layer",
    "LR305": "many units",
    "LR306": "a large input",
    "LR307": "everything in full precision",
    "LR308": "an optimizer that keeps much",
    "LR309": "smaller once it is trained",
    "LR310": "much kept for the gradients",
    "LR311": "a batch that does not fit",
}


def finding(id: str, text: str, **fields: Any) -> Finding:
    """A finding of a kind."""
    return Finding(id=id, title=TITLES[id], text=text, **fields)
