"""Random numbers of a slice: the rows that the whole batch would have drawn.

TensorFlow's stateless draws fill their result in order, from a counter that moves on by one for
every four numbers (two of 64 bits). So rows a to b of a draw are the same draw with its counter
moved, at no cost. What has no axis for the samples is drawn alike in every slice. Layers take their
seeds from generators that move with each draw: these begin every slice where the step began.

Which axis is the samples' is not told by its length, which may be anything's: draws of a step on
batches of three sizes are compared (see `sameness`).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from legroom.backends import patches
from legroom.backends.keras.slices.rules import Draw
from legroom.backends.keras.slices.runs import Drawn

__all__ = ["STATEFUL_DRAWS", "Instead", "cutting", "drawing", "read_draws"]

# Every op that draws, and its module.
_DRAWS = {
    name: f"tensorflow.python.ops.{module}"
    for module, names in {
        "gen_random_ops": (
            "random_standard_normal", "truncated_normal", "random_uniform", "random_uniform_int",
            "random_gamma", "random_poisson_v2", "random_shuffle", "multinomial",
            "parameterized_truncated_normal",
        ),
        "gen_stateful_random_ops": (
            "stateful_standard_normal_v2", "stateful_truncated_normal", "stateful_uniform",
            "stateful_uniform_int", "stateful_uniform_full_int", "stateful_random_binomial",
        ),
        "gen_stateless_random_ops": (
            "stateless_random_normal", "stateless_truncated_normal", "stateless_random_uniform",
            "stateless_random_uniform_int", "stateless_random_uniform_full_int",
            "stateless_multinomial", "stateless_parameterized_truncated_normal",
            "stateless_random_binomial", "stateless_random_gamma_v2", "stateless_random_poisson",
        ),
        "gen_stateless_random_ops_v2": (
            "stateless_random_normal_v2", "stateless_truncated_normal_v2",
            "stateless_random_uniform_v2", "stateless_random_uniform_int_v2",
            "stateless_random_uniform_full_int_v2", "stateless_random_gamma_v3",
            "stateless_shuffle",
        ),
    }.items()
    for name in names
}  # fmt: skip
# Those whose next draw is another one, whatever they are given: module and name.
STATEFUL_DRAWS = [(module, op) for op, module in _DRAWS.items() if "stateless" not in module]
# Called with an op, the original function, its arguments by name and the shape that it is given.
Instead = Callable[[str, Callable[..., Any], dict[str, Any], tuple[int, ...] | None], Any]
# Those whose numbers come one after the other, as many for each of them. (A full range of integers
# is what shuffles are made of: in slices these are others.)
_IN_ORDER = {
    "stateless_random_uniform_v2", "stateless_random_normal_v2", "stateless_random_uniform_int_v2",
}  # fmt: skip


def read_draws(seen: Sequence[Sequence[Drawn]], sizes: Sequence[int]) -> list[Draw]:
    """The draws of a step, from those on batches of several sizes. Pure.

    Args:
        seen: For each batch, what was drawn, in order.
        sizes: How many samples each of them had.
    """
    counts = [Counter(drawn.scope for drawn in draws) for draws in seen]
    scopes = {scope for count in counts for scope in count}
    uneven = {scope for scope in scopes if len({count[scope] for count in counts}) > 1}
    even = [[drawn for drawn in draws if drawn.scope not in uneven] for draws in seen]
    # One draw for each sample, say, from one seed after the other.
    apart = {d.scope: d for draws in seen for d in draws if d.scope in uneven}.values()
    return [_read_draw(alike, sizes) for alike in zip(*even, strict=True)] + [
        Draw(drawn.op, drawn.shape, (False,) * len(drawn.shape), drawn.scope, "apart", even=False)
        for drawn in apart
    ]


def _read_draw(alike: Sequence[Drawn], sizes: Sequence[int]) -> Draw:
    first = alike[0]
    apart = Draw(first.op, first.shape, (False,) * len(first.shape), first.scope, "apart")
    if len({(drawn.op, drawn.scope, len(drawn.shape)) for drawn in alike}) > 1:
        return apart
    axes, grows = [], []
    for lengths in zip(*(drawn.shape for drawn in alike), strict=True):
        fixed = len(set(lengths)) == 1
        if not fixed and len({n / size for n, size in zip(lengths, sizes, strict=True)}) > 1:
            return apart
        axes.append(lengths[0] if fixed else lengths[0] // sizes[0])
        grows.append(not fixed)
    if not first.op.startswith("stateless") or (any(grows) and first.op not in _IN_ORDER):
        way = "apart"
    elif any(grows):
        way = "rows" if grows[0] and not any(grows[1:]) else "apart"
    else:
        way = "same"
    return Draw(first.op, tuple(axes), tuple(grows), first.scope, way)


@contextlib.contextmanager
def drawing(instead: Instead) -> Iterator[None]:
    """Have a function called wherever random numbers are drawn."""
    with contextlib.ExitStack() as stack:
        for op, module in _DRAWS.items():
            stack.enter_context(patches.replaced(module, op, functools.partial(_hook, op, instead)))
        yield


def _hook(op: str, instead: Instead, original: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(original)

    def draw(*args: Any, **kwargs: Any) -> Any:
        values = signature.bind(*args, **kwargs).arguments
        return instead(op, original, values, _shape_of(values))

    return draw


@contextlib.contextmanager
def cutting(
    draws: Sequence[Draw], samples: int, start: Any, *, xla: str | None = None
) -> Iterator[list[str]]:
    """Have what is inside draw the numbers of a slice.

    Args:
        draws: What the step draws.
        samples: How many samples the slice has.
        start: How many came before it, as a tensor: 64 bits.
        xla: Where XLA draws, whether its whole batch has an "even" or an "odd" number of samples.

    Yields:
        The scopes of draws that are not among `draws`, as they come.
    """
    unknown: list[str] = []
    count = 0

    def way(op: str, shape: tuple[int, ...] | None) -> str:
        nonlocal count
        place, count = count, count + 1
        # Places differ where a loop draws: once in a graph, as often as it runs otherwise.
        ways = {draw.way for draw in draws if draw.fits(op, shape, samples)}
        if len(ways) == 1:
            return ways.pop()
        if place < len(draws) and draws[place].fits(op, shape, samples):
            return draws[place].way
        unknown.append(tf.get_current_name_scope())
        return "apart"

    def draw(
        op: str, original: Callable[..., Any], values: dict[str, Any], shape: tuple[int, ...] | None
    ) -> Any:
        how = way(op, shape)
        if how == "rows" and xla is not None and "normal" in op:
            assert shape is not None  # XLA compiles no others
            return _paired_rows(original, values, shape, samples, start, xla == "even")
        if how == "rows":
            return _rows(original, values, shape, samples, start)
        if how == "apart":
            if "counter" in values:
                values["counter"] = _moved(values["counter"], tf.stack([0, start]))
            elif op.startswith("stateless"):
                seed = tf.convert_to_tensor(values["seed"])
                values["seed"] = seed + tf.cast(tf.stack([0, start]), seed.dtype)
        return original(**values)

    with drawing(draw):
        yield unknown


def _shape_of(values: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape that a draw is given, where it is known; for a shuffle that of its value."""
    if "shape" not in values:
        given = next(values[name] for name in ("value", "logits") if name in values)
        known = tf.convert_to_tensor(given).shape
        return tuple(known) if known.is_fully_defined() else None
    static = tf.get_static_value(tf.convert_to_tensor(values["shape"]))
    return None if static is None else tuple(int(length) for length in static.reshape(-1))


def _rows(
    original: Callable[..., Any],
    values: dict[str, Any],
    shape: tuple[int, ...] | None,
    samples: int,
    start: Any,
) -> Any:
    """The rows of a draw that begin at a sample."""
    together = _numbers_of_a_count(values)
    if shape is None:
        wanted = tf.cast(values["shape"], tf.int64)
        length = tf.reduce_prod(wanted)
    else:
        wanted, length = shape, math.prod(shape)
    first = start * (length // samples)
    moved = {**values, "counter": _moved(values["counter"], tf.stack([first // together, 0]))}
    if shape is not None and (length // samples) % together == 0:
        return original(**moved)
    flat = original(**{**moved, "shape": tf.reshape(length + together - 1, [1])})
    return tf.reshape(tf.slice(flat, [first % together], [length]), wanted)


def _paired_rows(
    original: Callable[..., Any],
    values: dict[str, Any],
    shape: tuple[int, ...],
    samples: int,
    start: Any,
    even: bool,
) -> Any:
    """The rows of XLA's normal numbers that begin at a sample.

    It makes two of them from two uniform ones, which are neighbours along the first axis of even
    length. So this axis has to be the one that it is in the whole batch's draw.
    """
    rows, *inner = shape
    first = start * (rows // samples)
    even = even or (rows // samples) % 2 == 0
    more = rows + 3  # from a row on that a count begins with
    more += (more % 2 == 0) != even
    begin = first % 4
    counts = (first - begin) * math.prod(inner) // _numbers_of_a_count(values)
    moved = _moved(values["counter"], tf.stack([counts, 0]))
    drawn = original(**{**values, "counter": moved, "shape": tf.constant([more, *inner])})
    return tf.slice(drawn, [begin, *[0] * len(inner)], shape)


def _numbers_of_a_count(values: dict[str, Any]) -> int:
    kind = tf.as_dtype(values["dtype"] if "dtype" in values else values["minval"].dtype)
    return 2 if kind.size == 8 else 4


def _moved(counter: Any, by: Any) -> Any:
    """A counter further on."""
    # It has 128 bits, but the lower half does not run over in our lives.
    return tf.bitcast(tf.bitcast(counter, tf.int64) + by, tf.uint64)
