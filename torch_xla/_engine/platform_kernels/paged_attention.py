"""Attention over a paged key-value cache, for one or several queries per sequence, or for ragged batches."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.pallas_gpu import load_pallas_gpu_module
from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.rules.attention import Attention, attention_forward
from torch_xla._engine.lowering.rules.matmul import precision_for

LANES = 128
_FLOATS = (np.dtype(jnp.bfloat16), np.dtype(np.float32))
#: Number of tokens of a ragged batch whose keys are gathered together.
_TOKENS_PER_GATHER = 16


def paged_attention(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, lengths: jax.Array, page_indices: jax.Array,
    pages_per_block: int, megacore_mode: str | None, soft_cap: float | None,
) -> jax.Array:  # fmt: skip
    """Compute attention of one query per sequence: [batch, heads, size]."""
    lengths, page_indices = lengths.astype(np.int32), page_indices.astype(np.int32)

    def default(q: Any, k: Any, v: Any, lengths: Any, indices: Any) -> Any:
        return _attend_pages(q[:, None], k, v, lengths, indices, None, soft_cap)[:, 0]

    tpu = functools.partial(_paged_tpu, pages_per_block, megacore_mode, soft_cap)
    cuda = functools.partial(_paged_cuda, pages_per_block, soft_cap)
    found: jax.Array = platform_dependent(
        default,
        q, k_pages, v_pages, lengths, page_indices,
        tpu=tpu if _paged_tpu_supports(q, k_pages, v_pages) else None,
        cuda=cuda if _paged_cuda_supports(q, k_pages, page_indices, pages_per_block) else None,
    )  # fmt: skip
    return found


def multi_queries_paged_attention(
    q: jax.Array, k_pages: jax.Array, v_pages: jax.Array, lengths: jax.Array, page_indices: jax.Array,
    effective_q_lens: jax.Array, soft_cap: float | None,
) -> jax.Array:  # fmt: skip
    """Compute attention of the last queries of each sequence: [batch, length, heads, size]; without a kernel."""
    lengths, counts = lengths.astype(np.int32), effective_q_lens.astype(np.int32)
    return _attend_pages(q, k_pages, v_pages, lengths, page_indices, counts, soft_cap)


def _attend_pages(
    q: Any, k_pages: Any, v_pages: Any, lengths: Any, indices: Any, counts: Any, soft_cap: float | None
) -> jax.Array:
    """Attend causally, with row r of q at position length - count + r; without counts each row attends to all keys."""

    def gathered(pages: Any) -> Any:  # [batch, heads, positions, size]
        found = jnp.moveaxis(pages[:, indices], 1, 0)
        return found.reshape(*found.shape[:2], -1, found.shape[-1]).astype(np.float32)

    k, v = gathered(k_pages), gathered(v_pages)
    columns = jnp.arange(k.shape[2], dtype=np.int32)
    rows = jnp.arange(q.shape[1], dtype=np.int32)
    seen = jnp.broadcast_to(columns < lengths[:, None, None], (len(lengths), len(rows), len(columns)))
    if counts is not None:
        position = (lengths - counts)[:, None] + rows
        seen &= (columns <= position[:, :, None]) & (rows < counts[:, None])[:, :, None]
    heads_first = jnp.moveaxis(q, 1, 2).astype(np.float32)
    out, _ = attention_forward(Attention(1.0, False, soft_cap=soft_cap), heads_first, k, v, seen[:, None])
    return jnp.moveaxis(out, 2, 1).astype(q.dtype)


def _paged_tpu_supports(q: Any, k: Any, v: Any) -> bool:
    return q.shape[-1] % LANES == 0 and q.dtype in _FLOATS and k.dtype == v.dtype and k.dtype in _FLOATS


def _paged_tpu(
    pages_per_block: int, megacore_mode: str | None, soft_cap: float | None, q: Any, k: Any, v: Any, lengths: Any,
    indices: Any,
) -> Any:  # fmt: skip
    from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as kernel

    return kernel(
        q, k, v, lengths, indices,
        pages_per_compute_block=pages_per_block, megacore_mode=megacore_mode, attn_logits_soft_cap=soft_cap,
    )  # fmt: skip


def _paged_cuda_supports(q: Any, k: Any, indices: Any, pages_per_block: int) -> bool:
    """Return whether jax has its kernel and the shapes fit Triton's tiles, with sizes of powers of 2 of at least 16."""
    if load_pallas_gpu_module("paged_attention") is None:
        return False
    size, page = k.shape[-1], k.shape[2]
    at_once = min(pages_per_block, indices.shape[1] // math.gcd(indices.shape[1], 16)) * page
    full_blocks = indices.shape[1] // math.gcd(indices.shape[1], 16) % max(at_once // page, 1) == 0
    powers = all(n >= 16 and n & (n - 1) == 0 for n in (size, at_once))
    return powers and full_blocks and q.dtype == k.dtype and q.dtype in (*_FLOATS, np.dtype(np.float16))


def _paged_cuda(
    pages_per_block: int, soft_cap: float | None, q: Any, k: Any, v: Any, lengths: Any, indices: Any
) -> Any:
    module = load_pallas_gpu_module("paged_attention")
    assert module is not None
    return module.paged_attention(
        q, k, v, indices, lengths,
        pages_per_compute_block=pages_per_block, k_splits=math.gcd(indices.shape[1], 16), attn_logits_soft_cap=soft_cap,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class RaggedOptions:
    """The static arguments of ragged_paged_attention."""

    scale: float = 1.0
    window: int | None = None
    soft_cap: float | None = None
    mask_value: float | None = None
    k_scale: float | None = None
    v_scale: float | None = None
    use_kernel: bool = True
    pages_per_block: int | None = None
    queries_per_block: int | None = None
    vmem_limit: int | None = None


def ragged_paged_attention(
    q: jax.Array, kv_pages: jax.Array, kv_lens: jax.Array, page_indices: jax.Array, cu_q_lens: jax.Array,
    num_seqs: jax.Array, options: RaggedOptions,
) -> jax.Array:  # fmt: skip
    """Compute attention of concatenated sequences: [tokens, heads, size]; tokens without a sequence are zero."""
    integers = (x.astype(np.int32) for x in (kv_lens, page_indices, cu_q_lens, num_seqs.reshape(1)))
    kernel = (
        functools.partial(_ragged_tpu, options) if options.use_kernel and _ragged_tpu_supports(q, kv_pages) else None
    )
    found: jax.Array = platform_dependent(
        functools.partial(_ragged_reference, options), q, kv_pages, *integers, tpu=kernel
    )
    return found


def _ragged_reference(
    o: RaggedOptions, q: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any
) -> Any:
    """Compute ragged paged attention token by token, each with the keys of its sequence."""
    heads = kv_pages.shape[2] // 2
    ends = jnp.where(jnp.arange(len(kv_lens)) < num_seqs[0], cu_q_lens[1:], np.iinfo(np.int32).max)

    def of_token(x: tuple[Any, Any]) -> Any:
        query, token = x
        sequence = jnp.sum(ends <= token)
        pages = kv_pages[page_indices[sequence]].reshape(-1, heads, 2, q.shape[-1])
        k, v = _scale(pages[:, :, 0], o.k_scale, q.dtype), _scale(pages[:, :, 1], o.v_scale, q.dtype)
        grouped = query.reshape(heads, -1, q.shape[-1])
        product = functools.partial(jnp.einsum, precision=precision_for(q.dtype), preferred_element_type=np.float32)
        scores = product("hgd,shd->hgs", grouped, k) * o.scale
        if o.soft_cap is not None:
            scores = o.soft_cap * jnp.tanh(scores / o.soft_cap)
        length = kv_lens[sequence]
        position = length - cu_q_lens[sequence + 1] + token
        columns = jnp.arange(len(k), dtype=np.int32)
        hidden = columns > position
        if o.window is not None:
            hidden |= columns <= position - o.window
        masked = -0.7 * float(np.finfo(np.float32).max) if o.mask_value is None else o.mask_value
        weights = jax.nn.softmax(jnp.where(columns < length, scores + jnp.where(hidden, masked, 0.0), -jnp.inf))
        out = product("hgs,shd->hgd", weights.astype(v.dtype), v).astype(q.dtype).reshape(query.shape)
        return jnp.where((sequence < num_seqs[0]) & (token >= cu_q_lens[0]) & (length > 0), out, 0)

    tokens = jnp.arange(len(q), dtype=np.int32)
    return jax.lax.map(of_token, (q, tokens), batch_size=min(_TOKENS_PER_GATHER, len(q)))


def _scale(x: Any, scale: float | None, dtype: Any) -> Any:
    return x.astype(dtype) if scale is None else (x.astype(np.float32) * scale).astype(dtype)


def _ragged_tpu_supports(q: Any, kv_pages: Any) -> bool:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import kernel

    try:
        kernel.get_min_heads_per_blk(q.shape[1], kv_pages.shape[2], q.dtype, kv_pages.dtype)
    except ValueError:
        return False
    return q.shape[-1] % LANES == 0 and q.dtype in _FLOATS


def _ragged_tpu(
    o: RaggedOptions, q: Any, kv_pages: Any, kv_lens: Any, page_indices: Any, cu_q_lens: Any, num_seqs: Any
) -> Any:
    from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as kernel

    pages, queries = o.pages_per_block, o.queries_per_block
    if jax.default_backend() != "tpu":  # jax's table of tuned sizes queries the device
        pages = min(128, page_indices.shape[1]) if pages is None else pages
        queries = min(32, len(q)) if queries is None else queries
    out = kernel(
        q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs,
        sm_scale=o.scale, sliding_window=o.window, soft_cap=o.soft_cap, mask_value=o.mask_value,
        k_scale=o.k_scale, v_scale=o.v_scale,
        num_kv_pages_per_block=pages, num_queries_per_block=queries, vmem_limit_bytes=o.vmem_limit,
    )  # fmt: skip
    # The kernel does not write tokens without a sequence.
    real = (jnp.arange(len(q)) < cu_q_lens[num_seqs[0]])[:, None, None]
    return jnp.where(real, out, 0).astype(q.dtype)
