"""Metrics and results of slices, put together to those of the whole batch.

Keras's own metrics keep sums, and the sums of the slices are those of the batch. A metric that
computes one number for each batch, or a running mean that is fed each batch's loss, is another
matter: its updates are held back, put together, and made once.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from keras import ops, tree
from keras.backend import is_float_dtype, standardize_dtype

from legroom.backends import patches
from legroom.backends.keras.models.masks import mask_of, put_mask
from legroom.backends.parts import METRIC

__all__ = ["Held", "Results", "combine", "holding", "noting_results", "results_among",
           "update_held"]  # fmt: skip

# By a tensor's identity: which metric's result it is, as an index, and the tensor, which must live
# as long as its identity is asked for.
Results = dict[int, tuple[int, Any]]


class Held:
    """Updates of metrics that were held back in one slice.

    Attributes:
        order: Which metric each update is for, as an index.
        calls: Each update's arguments, and in the same structure their Keras masks (or None).
        results: What the metrics gave as their results.
    """

    def __init__(self) -> None:
        self.order: list[int] = []
        self.calls: list[Any] = []
        self.results: Results = {}


@contextlib.contextmanager
def holding(metrics: Sequence[Any], unweighted: Sequence[Any] = ()) -> Iterator[Held]:
    """Hold back what is told to these metrics while the context lasts.

    Args:
        metrics: The metrics.
        unweighted: Those among them to which each batch counts the same. Keras weights the loss
            of each output by the batch's static size, which is unknown for most input, and then
            not at all; a slice's size is always known.
    """
    held = Held()
    with contextlib.ExitStack() as stack:
        for index, metric in enumerate(metrics):
            plain = any(metric is other for other in unweighted)
            recorder = _recorder(held, index, plain)
            stack.enter_context(patches.shadowed(metric, METRIC, "update_state", recorder))
        held.results = stack.enter_context(noting_results(metrics))
        yield held


@contextlib.contextmanager
def noting_results(metrics: Sequence[Any]) -> Iterator[Results]:
    """Note what these metrics give as their results."""
    results: Results = {}

    def noting(index: int, original: Callable[[], Any]) -> Callable[[], Any]:
        def result() -> Any:
            value = original()
            results.update({id(leaf): (index, leaf) for leaf in tree.flatten(value)})
            return value

        return result

    with contextlib.ExitStack() as stack:
        for index, metric in enumerate(metrics):
            noted = noting(index, metric.result)
            stack.enter_context(patches.shadowed(metric, METRIC, "result", noted))
        yield results


def results_among(leaves: Sequence[Any], results: Results) -> set[int]:
    """Which of a step's outputs are metrics' results, by number.

    An older Keras hands on Python's numbers in their place, where it can.
    """
    found = {i for i, leaf in enumerate(leaves) if id(leaf) in results}
    if any(type(leaf) is float for leaf in leaves):
        known = (value for _, value in results.values() if hasattr(value, "numpy"))
        numbers = {float(value) for value in known if not ops.shape(value)}
        found |= {i for i, leaf in enumerate(leaves) if type(leaf) is float and leaf in numbers}
    return found


def update_held(
    metrics: Sequence[Any],
    order: Sequence[int],
    slices: Sequence[Any],
    sizes: Sequence[int],
    rules: Sequence[Sequence[str]],
    join: Callable[[Sequence[Any]], Any],
) -> None:
    """Make the updates that the slices held back, each once for the whole batch.

    Args:
        metrics: The metrics.
        order: Which of them each update is for.
        slices: For each slice, its updates' arguments.
        sizes: The samples in each slice.
        rules: For each update, how each of its arguments is put together.
        join: Puts the samples of slices together.
    """
    shares = [size / sum(sizes) for size in sizes]
    for position, index in enumerate(order):
        calls = [calls[position] for calls in slices]
        leaves = [tree.flatten(call) for call in calls]
        merged = [
            combine([leaf[i] for leaf in leaves], rule, shares, join)
            for i, rule in enumerate(rules[position])
        ]
        arguments, masks = tree.pack_sequence_as(calls[0], merged)
        tree.map_structure(put_mask, arguments, masks)
        args, kwargs = arguments
        metrics[index].update_state(*args, **kwargs)


def combine(
    values: Sequence[Any],
    rule: str,
    shares: Sequence[float],
    join: Callable[[Sequence[Any]], Any],
) -> Any:
    """Put one result of the slices together: "last", "mean", "sum" or "concat"."""
    if rule == "last" or values[0] is None:
        return values[-1]
    if rule == "concat":
        return join(values)
    if rule == "sum":
        return functools.reduce(ops.add, [ops.convert_to_tensor(value) for value in values])
    kind = standardize_dtype(ops.convert_to_tensor(values[0]).dtype)
    kind = kind if is_float_dtype(kind) else "float32"
    parts = zip(values, shares, strict=True)
    return functools.reduce(
        ops.add, [ops.cast(x, kind) * ops.cast(share, kind) for x, share in parts]
    )


def _recorder(held: Held, index: int, unweighted: bool) -> Callable[..., None]:
    def update_state(*args: Any, **kwargs: Any) -> None:
        if unweighted:
            kwargs.pop("sample_weight", None)
        held.order.append(index)
        masks = tree.map_structure(mask_of, (args, kwargs))
        held.calls.append(((args, kwargs), masks))

    return update_state
