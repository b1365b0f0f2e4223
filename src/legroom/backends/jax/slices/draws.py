"""Random draws of a slice that are the rows of the whole batch's.

A slice's rows are drawn with a key that begins at a later entry (`row_keys`): bit for bit, with all
of JAX's own functions on top, and nothing is drawn twice. With other generators than JAX's default
one, layers are named.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax.numpy as jnp
from keras.src.backend.common.name_scope import current_path
from keras.src.backend.jax import random as keras_random

from legroom.backends import patches
from legroom.backends.jax.slices.row_keys import draws_by_entry, row_key
from legroom.backends.keras.slices.rules import Draw
from legroom.backends.keras.slices.runs import Drawn
from legroom.backends.parts import JAX_RANDOM

__all__ = ["Draws", "drawing", "draws_of"]

# Each entry is a function of its own bits: rows can be drawn by themselves.
_BY_ENTRY = ("normal", "uniform", "truncated_normal", "randint", "dropout")
_OTHERS = ("categorical", "gamma", "binomial", "beta", "shuffle")


class Draws:
    """The draws of one slice, or of a whole batch.

    Args:
        rules: How slices draw them; nothing for as they are.
        start: How many samples of the batch come before these.
        still: Whether draws by entry give the middle of what they may give, so that nothing depends
            on them.

    Attributes:
        seen: The draws that were made.
    """

    def __init__(self, rules: Sequence[Draw] = (), start: Any = 0, *, still: bool = False) -> None:
        self._rules = rules
        self._start = start
        self._still = still
        self.seen: list[Drawn] = []

    def draw(self, name: str, original: Callable[..., Any], given: dict[str, Any]) -> Any:
        """Make a draw."""
        shape = _shape(name, given)
        if shape is None:
            return original(**given)
        number = len(self.seen)
        self.seen.append(Drawn(name, shape, current_path() or ""))
        if self._still and name in _BY_ENTRY:
            return _still(name, shape, given)
        rule = self._rules[number] if number < len(self._rules) else None
        if rule is not None and rule.way == "rows" and rule.op == name:
            key = keras_random.jax_draw_seed(given["seed"])
            first = jnp.asarray(self._start, jnp.uint32) * jnp.uint32(math.prod(rule.axes))
            given = {**given, "seed": row_key(key, first)}
        return original(**given)


class _Active(threading.local):
    draws: Draws | None = None


_active = _Active()


@contextlib.contextmanager
def drawing(draws: Draws) -> Iterator[Draws]:
    """Have Keras draw in a way, in this thread."""

    def put(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        bind = inspect.signature(original).bind

        @functools.wraps(original)
        def draw(*args: Any, **kwargs: Any) -> Any:
            bound = bind(*args, **kwargs)
            bound.apply_defaults()
            return draws.draw(name, original, dict(bound.arguments))

        return draw

    with contextlib.ExitStack() as stack:
        for name in (*_BY_ENTRY, *_OTHERS):
            make = functools.partial(put, name)
            stack.enter_context(patches.replaced(JAX_RANDOM, name, make))
        yield draws


def draws_of(
    whole: Sequence[Drawn], parts: Sequence[Sequence[Drawn]], sizes: Sequence[int]
) -> list[Draw]:
    """For each draw of a step how slices draw it.

    Args:
        whole: What was drawn for all samples at once.
        parts: What the slices drew.
        sizes: The samples in each slice.
    """
    if any([one.op for one in part] != [one.op for one in whole] for part in parts):
        return [Draw(one.op, (), (), one.scope, "apart") for one in whole]
    return [_draw_of(one, [part[k] for part in parts], sizes) for k, one in enumerate(whole)]


def _draw_of(whole: Drawn, parts: Sequence[Drawn], sizes: Sequence[int]) -> Draw:
    axes, samples = whole.shape, sum(sizes)
    fixed = all(part.shape == axes for part in parts)
    way = "same" if fixed else "apart"
    grows = tuple(False for _ in axes)
    if not fixed and axes and axes[0] % samples == 0:
        each = axes[0] // samples
        cut = [(each * size, *axes[1:]) for size in sizes]
        if [part.shape for part in parts] == cut:
            axes, grows = (each, *axes[1:]), (True, *grows[1:])
            way = "rows" if whole.op in _BY_ENTRY and draws_by_entry() else "apart"
    return Draw(whole.op, axes, grows, whole.scope, way)


def _shape(name: str, given: dict[str, Any]) -> tuple[int, ...] | None:
    """The shape of a draw; None where nothing is drawn."""
    if name == "dropout":
        if given["rate"] in (0.0, 1.0):
            return None
        shape = given["noise_shape"]
        inside = given["inputs"].shape
        if shape is None:
            return tuple(inside)
        return tuple(n if m is None else int(m) for n, m in zip(inside, shape, strict=True))
    if name == "shuffle":
        return tuple(given["x"].shape)
    if name == "categorical":
        return (int(given["logits"].shape[0]), int(given["num_samples"]))
    return tuple(int(n) for n in given["shape"])


def _still(name: str, shape: tuple[int, ...], given: dict[str, Any]) -> Any:
    keras_random.jax_draw_seed(given["seed"])  # which moves on all the same
    if name == "dropout":
        return given["inputs"]
    dtype = given["dtype"] or "float32"
    if name in ("normal", "truncated_normal"):
        return jnp.broadcast_to(jnp.asarray(given["mean"], dtype), shape)
    low, high = jnp.asarray(given["minval"]), jnp.asarray(given["maxval"])
    middle = (low + high) // 2 if name == "randint" else (low + high) / 2
    return jnp.broadcast_to(middle.astype(dtype), shape)
