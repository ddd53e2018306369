"""Flash attention on TPUs with jax's Pallas kernel; pads sequences to full tiles and fits the block sizes to them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.compat import pallas_attention

LANES = 128
#: Default block sizes; each is reduced until it divides the length.
BLOCKS = {
    "block_q": 512,
    "block_k_major": 512,
    "block_k": 512,
    "block_b": 2,
    "block_q_major_dkv": 512,
    "block_k_major_dkv": 512,
    "block_q_dkv": 512,
    "block_k_dkv": 512,
    "block_q_dq": 1024,
    "block_k_dq": 256,
    "block_k_major_dq": 512,
}
#: Segment ids of the padding: a padded query attends to no real key, and no query attends to a padded key.
_NO_QUERY, _NO_KEY = np.iinfo(np.int32).min, np.iinfo(np.int32).min + 1

Maybe = jax.Array | None


class _Options(Protocol):
    @property
    def causal(self) -> bool: ...
    @property
    def scale(self) -> float: ...
    @property
    def blocks(self) -> tuple[tuple[str, int], ...]: ...


def supports(q: jax.Array, k: jax.Array, v: jax.Array) -> bool:
    """Return whether the kernel supports these arrays."""
    alike = q.shape[1] == k.shape[1] and k.shape == v.shape and 0 not in (*q.shape, *k.shape)
    return (
        alike and q.dtype in (np.dtype(jnp.bfloat16), np.dtype(np.float32)) and pallas_attention.has_flash_attention()
    )


def forward(options: _Options) -> Callable[..., Any]:
    """Return the function (q, k, v, ab, segment ids of queries, of keys) -> (output, log-sum-exp)."""

    def run(q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> Any:
        length, size = q.shape[2:]
        q, k, v, ab, ids = _pad_to_blocks(q, k, v, ab, q_ids, kv_ids)
        blocks = block_sizes(dict(options.blocks), q.shape[0], q.shape[2], k.shape[2])
        out, sums, top = pallas_attention.flash_attention(q, k, v, ab, ids, options.causal, options.scale, blocks)
        # A fully masked row has scores of -2.4e38 for all keys, and would be the mean of the values. Its gradient is 0.
        empty = top < -1e38
        lse = jnp.where(empty, jnp.inf, top + jnp.log(sums))
        return jnp.where(empty[..., None], 0, out)[:, :, :length, :size], lse[:, :, :length]

    return run


def backward(options: _Options, wants_ab: bool) -> Callable[..., Any]:
    """Return the function (gradient, arguments of forward, its results) -> gradients of q, k, v (and ab)."""

    def run(grad: Any, q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, out: Any, lse: Any) -> Any:
        q_length, kv_length, size = q.shape[2], k.shape[2], q.shape[3]
        dtype = None if ab is None else ab.dtype
        q, k, v, ab, ids = _pad_to_blocks(q, k, v, ab, q_ids, kv_ids)
        grad, out = (_pad(x, q.shape) for x in (grad, out))
        lse = _pad(lse, q.shape[:3])
        blocks = block_sizes(dict(options.blocks), q.shape[0], q.shape[2], k.shape[2])
        # The kernel computes exp(score - top) / sum; sum = 1 and top = log-sum-exp give the same.
        saved = q, k, v, ab, ids, out, jnp.ones_like(lse), lse
        dq, dk, dv, dab = pallas_attention.flash_attention_backward(options.causal, options.scale, blocks, saved, grad)
        gradients = dq[:, :, :q_length, :size], dk[:, :, :kv_length, :size], dv[:, :, :kv_length, :size]
        return (*gradients, dab[:, :, :q_length, :kv_length].astype(dtype)) if wants_ab else gradients

    return run


def _pad_to_blocks(q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> tuple[Any, ...]:
    """Pad the arrays to full tiles; also return the segment ids, if there are any or keys were padded."""
    from jax.experimental.pallas.ops.tpu.flash_attention import SegmentIds

    batch, q_length, kv_length = q.shape[0], q.shape[2], k.shape[2]
    size = q.shape[3] if q.shape[3] < LANES else _round_up_to_block(q.shape[3])
    if q_ids is None and _round_up_to_block(kv_length) != kv_length:
        q_ids, kv_ids = (jnp.zeros((batch, n), np.int32) for n in (q_length, kv_length))
    ids = None
    if q_ids is not None and kv_ids is not None:
        ids = SegmentIds(
            _pad(q_ids, (batch, _round_up_to_block(q_length)), _NO_QUERY),
            _pad(kv_ids, (batch, _round_up_to_block(kv_length)), _NO_KEY),
        )
    q, k, v = (_pad(x, (*x.shape[:2], _round_up_to_block(x.shape[2]), size)) for x in (q, k, v))
    if ab is not None:
        ab = _pad(jnp.broadcast_to(ab, (*q.shape[:2], q_length, kv_length)), (*q.shape[:3], k.shape[2]))
    return q, k, v, ab, ids


def _round_up_to_block(length: int) -> int:
    return math.ceil(length / LANES) * LANES


def _pad(x: Any, shape: tuple[int, ...], value: int = 0) -> Any:
    return jnp.pad(x, [(0, new - old) for old, new in zip(x.shape, shape, strict=True)], constant_values=value)


def block_sizes(wanted: Mapping[str, int], batch: int, q_length: int, kv_length: int) -> Any:
    """Return the kernel's BlockSizes: at most the requested sizes, and divisors of the (padded) lengths."""
    from jax.experimental.pallas.ops.tpu.flash_attention import BlockSizes

    sizes = {**BLOCKS, **wanted}
    fitted = {"block_b": min(sizes["block_b"], batch)}
    for name in ("block_q", "block_q_major_dkv", "block_q_dq"):
        fitted[name] = fit_block_size(sizes[name], q_length)
    for name in ("block_k_major", "block_k_major_dkv", "block_k_major_dq"):
        fitted[name] = fit_block_size(sizes[name], kv_length)
    for name in ("block_k", "block_q_dkv", "block_k_dkv", "block_k_dq"):
        within = {"block_k": "block_k_major", "block_k_dq": "block_k_major_dq"}.get(
            name, name.replace("_dkv", "_major_dkv")
        )
        fitted[name] = fit_block_size(sizes[name], fitted[within])
    return BlockSizes(**fitted)


def fit_block_size(wanted: int, length: int) -> int:
    """Return the largest multiple of 128 that divides ``length`` (a multiple of 128) and is at most ``wanted``."""
    tiles = length // LANES
    return LANES * max(n for n in range(1, tiles + 1) if tiles % n == 0 and (n == 1 or n * LANES <= wanted))
