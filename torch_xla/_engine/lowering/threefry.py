"""PRNG keys with the numbers of jax's threefry2x32 keys, hashed without a loop on every platform.

jax (0.10 to 0.12) hashes in a loop of five steps on CPUs. It writes its state to memory in each step, and nothing fuses
with it: a dropout mask took seven times as long as without the loop, and three times as long to compile. Elsewhere jax
does not use a loop.

Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.random import define_prng_impl, threefry_prng_impl

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_WIDTHS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


@jax.jit
def _hash(low_key: jax.Array, high_key: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Compute threefry2x32 with 20 rounds of the counters (x, y), uint32 each."""
    keys = (low_key, high_key, low_key ^ high_key ^ _PARITY)
    x, y = x + keys[0], y + keys[1]
    for step in range(5):
        for rotation in _ROTATIONS[step % 2]:
            x = x + y
            y = x ^ (lax.shift_left(y, np.uint32(rotation)) | lax.shift_right_logical(y, np.uint32(32 - rotation)))
        x, y = x + keys[(step + 1) % 3], y + keys[(step + 2) % 3] + np.uint32(step + 1)
    return x, y


def _hash_positions(key: jax.Array, shape: tuple[int, ...]) -> tuple[jax.Array, jax.Array]:
    """Hash the row-major position of each element; there are fewer than 2**32."""
    low = jnp.zeros(shape, np.uint32)
    for axis, size in enumerate(shape):
        low = low * np.uint32(size) + lax.broadcasted_iota(np.uint32, shape, axis)
    return _hash(key[0], key[1], jnp.zeros(shape, np.uint32), low)


def _is_positional(shape: tuple[int, ...]) -> bool:
    """Whether jax numbers the elements by position, as by default, and with one 32-bit integer."""
    by_position: bool = jax.config.jax_threefry_partitionable  # type: ignore[attr-defined]  # jax adds it at import
    return by_position and math.prod(shape) < 2**32


def _random_bits(key: jax.Array, width: int, shape: tuple[int, ...]) -> jax.Array:
    if not _is_positional(shape):
        return threefry_prng_impl.random_bits(key, width, shape)
    x, y = _hash_positions(key, shape)
    if width == 64:
        return lax.shift_left(x.astype(np.uint64), np.uint64(32)) | y.astype(np.uint64)
    return (x ^ y).astype(_WIDTHS[width])


def _split(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    if not _is_positional(shape):
        return threefry_prng_impl.split(key, shape)
    return jnp.stack(_hash_positions(key, shape), -1)


def _fold_in(key: jax.Array, data: jax.Array) -> jax.Array:
    return jnp.stack(_hash(key[0], key[1], jnp.zeros((), np.uint32), jnp.asarray(data, np.uint32)))


_IMPLEMENTATION = define_prng_impl(
    key_shape=threefry_prng_impl.key_shape,
    seed=threefry_prng_impl.seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,  # type: ignore[arg-type]  # jax passes an array
    name="torch_xla_threefry2x32",
    tag="txfry",
)


def wrap_key_data(data: jax.Array) -> jax.Array:
    """Return the key with this data, uint32[2]. Its numbers are those of jax's key of the same data."""
    return jax.random.wrap_key_data(data, impl=_IMPLEMENTATION)
