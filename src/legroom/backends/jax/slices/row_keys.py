"""Keys that draw later rows of what JAX's own keys draw.

JAX numbers the entries of a draw and hashes each number with the key. A key of this kind has a
first number beside it, and hashes the numbers from there on. That holds for JAX's default generator
in its default order (`jax_threefry_partitionable`).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.extend
import jax.numpy as jnp

__all__ = ["draws_by_entry", "later_bits", "later_keys", "row_key"]


def draws_by_entry() -> bool:
    """Whether entries are drawn one by one here, so that rows can be."""
    return bool(
        jax.config.jax_threefry_partitionable
        and jax.config.jax_default_prng_impl == "threefry2x32"
        and _row_keys() is not None
    )


def row_key(key: Any, first: Any) -> Any:
    """A key that draws what another one draws from an entry on."""
    return jax.random.wrap_key_data(_with_first(_words(key), first), impl=_row_keys())


def later_bits(key: Any, first: Any, width: int, shape: Sequence[int]) -> Any:
    """The bits that a key gives from an entry on."""
    return _bits(_with_first(_words(key), first), width, shape)


def later_keys(key: Any, first: Any, count: int) -> Any:
    """The keys that a key is split into, from one on."""
    words = _words(key)
    numbers = jax.lax.iota(jnp.uint32, count) + first
    halves = _hashed(words, numbers)
    return jax.random.wrap_key_data(jnp.stack(halves, axis=-1), impl="threefry2x32")


def _words(key: Any) -> Any:
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        key = jax.random.key_data(key)
    return key.astype(jnp.uint32)


@functools.cache
def _row_keys() -> Any:
    """None where this JAX has no such thing."""
    define = getattr(jax.extend.random, "define_prng_impl", None)
    if define is None:
        return None
    return define(
        key_shape=(3,),
        seed=lambda seed: jnp.zeros(3, jnp.uint32),
        split=_split,
        random_bits=_bits,
        fold_in=_fold_in,
        name="legroom_rows",
        tag="rows",
    )


def _bits(key: Any, width: int, shape: Sequence[int]) -> Any:
    halves = _hashed(key, jax.lax.iota(jnp.uint32, math.prod(shape)) + key[2])
    if width == 64:
        high, low = (half.astype(jnp.uint64) for half in halves)
        made = (high << jnp.uint64(32)) | low
    else:
        made = (halves[0] ^ halves[1]).astype({8: jnp.uint8, 16: jnp.uint16, 32: jnp.uint32}[width])
    return made.reshape(shape)


def _hashed(words: Any, numbers: Any) -> Any:
    return jax.extend.random.threefry2x32_p.bind(
        jnp.broadcast_to(words[0], numbers.shape),
        jnp.broadcast_to(words[1], numbers.shape),
        jnp.zeros_like(numbers),
        numbers,
    )


def _split(key: Any, shape: Sequence[int]) -> Any:
    made = jax.random.split(_own_key(key), tuple(shape))
    return _with_first(jax.random.key_data(made), key[2])


def _fold_in(key: Any, data: Any) -> Any:
    return _with_first(jax.random.key_data(jax.random.fold_in(_own_key(key), data)), key[2])


def _own_key(key: Any) -> Any:
    return jax.random.wrap_key_data(key[:2], impl="threefry2x32")


def _with_first(words: Any, first: Any) -> Any:
    first = jnp.asarray(first, jnp.uint32)[..., None]
    return jnp.concatenate([words, jnp.broadcast_to(first, (*words.shape[:-1], 1))], axis=-1)
