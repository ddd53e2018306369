"""Lowering rules of scaled dot product attention, forward and backward.

The attention weights are materialized one block at a time, and recomputed for the gradient. The query heads form groups
that share a key and a value head: arrays are [batch, group, head, row, ...].
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import partitioning
from torch_xla._engine.lowering import cpu_kernel_call, flash_attention_cuda, threefry
from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.matmul import precision_for

Maybe = jax.Array | None

#: Maximum number of attention weights that are materialized together; more queries are processed in blocks, in a loop.
BLOCK_ELEMENTS = 1 << 26
#: Rows per block beyond which larger blocks save nothing; each block reads all keys and values.
_ROWS = 512

#: Maximum number of causal blocks that are unrolled; each unrolled block reads only the keys it attends to.
_MOST_UNROLLED = 4

#: Multiplications in the scores from which ATen's CPU kernel is worth a call (docs/project/cpu_kernels.md).
_LEAST_PRODUCTS = 1 << 23


def _accumulation_dtype(dtype: Any) -> np.dtype:
    """Return the dtype in which products of this dtype are accumulated: float32, or float64."""
    return np.dtype(jnp.promote_types(dtype, np.float32))


def contract(subscripts: str, a: jax.Array, b: jax.Array) -> jax.Array:
    """Compute einsum of two arrays of one dtype, accumulated in float32 or wider."""
    return jnp.einsum(
        subscripts, a, b, precision=precision_for(a.dtype), preferred_element_type=_accumulation_dtype(a.dtype)
    )


@dataclass(frozen=True, slots=True)
class Attention:
    """The options of one attention call, which are the same for all blocks."""

    scale: float
    is_causal: bool
    dropout: float = 0.0
    key_data: Maybe = None  # uint32[2], of the dropout mask
    soft_cap: float | None = None  # scores are limited to (-soft_cap, soft_cap) by tanh, before the bias
    window: int | None = None  # a row attends to this many positions on each side of it

    @property
    def causal(self) -> bool:
        """``is_causal``, by the name that the kernels of other platforms use."""
        return self.is_causal

    def scores(self, q: jax.Array, k: jax.Array, bias: Maybe, block: jax.Array) -> tuple[jax.Array, Maybe]:
        """Return the scores, and their derivative with respect to the scaled products; None if that is 1."""
        scores, slope = contract("bghld,bgsd->bghls", q, k) * self.scale, None
        if self.soft_cap is not None:
            bent = jnp.tanh(scores / self.soft_cap)
            scores, slope = self.soft_cap * bent, 1 - bent * bent
        if bias is not None:
            scores = jnp.where(bias, scores, -jnp.inf) if bias.dtype == np.bool_ else scores + bias
        if self.is_causal or self.window is not None:
            rows = (block * q.shape[3]).astype(np.int32) + lax.broadcasted_iota(np.int32, scores.shape, 3)
            columns = lax.broadcasted_iota(np.int32, scores.shape, 4)
            if self.is_causal:
                scores = jnp.where(columns <= rows, scores, -jnp.inf)
            if self.window is not None:
                scores = jnp.where(abs(columns - rows) <= self.window, scores, -jnp.inf)
        return scores, slope

    def dropped(self, weights: jax.Array, block: jax.Array) -> jax.Array:
        """Apply dropout to the weights; linear in them, with the same mask in forward and backward."""
        if self.dropout == 0 or self.key_data is None:
            return weights
        key = jax.random.fold_in(threefry.wrap_key_data(self.key_data), block)
        mask = jax.random.bernoulli(key, 1 - self.dropout, weights.shape)
        return jnp.where(mask, weights / (1 - self.dropout), 0)


def _softmax(scores: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (weights, log-sum-exp of the scores). A row that is fully masked (-inf) has zero weights."""
    top = jnp.max(scores, -1, keepdims=True)
    top = jnp.where(jnp.isneginf(top), 0, top)
    weights = jnp.exp(scores - top)
    total = jnp.sum(weights, -1, keepdims=True)
    empty = total == 0
    return weights / jnp.where(empty, 1, total), jnp.where(empty, jnp.inf, top + jnp.log(total))[..., 0]


def _group_heads(x: jax.Array, groups: int) -> jax.Array:
    """Reshape [batch, heads, ...] to [batch, groups, heads per group, ...]."""
    return x.reshape(x.shape[0], groups, -1, *x.shape[2:])


def _grouped_bias(bias: Maybe, groups: int) -> Maybe:
    if bias is None:
        return None
    bias = bias.reshape((1,) * (4 - bias.ndim) + bias.shape)
    return bias[:, None] if bias.shape[1] == 1 else _group_heads(bias, groups)


def _blocks(q: jax.Array, k: jax.Array) -> int:
    heads, rows = math.prod(q.shape[:3]), q.shape[3]
    blocks = -(-heads * rows * k.shape[2] // BLOCK_ELEMENTS)
    if blocks * _ROWS > rows:
        # Few rows per block. With several devices each of them usually has only some of the heads of the batch.
        local_heads = -(-heads // partitioning.partition_count())
        blocks = min(blocks, max(-(-local_heads * rows * k.shape[2] // BLOCK_ELEMENTS), -(-rows // _ROWS)))
    return min(blocks, rows)


def _split(x: jax.Array, n: int) -> jax.Array:
    """Split axis 3 into ``n`` blocks, which become the first axis; pad with zeros."""
    if n == 1:
        return lax.expand_dims(x, (0,))
    rows = -(-x.shape[3] // n)
    padded = jnp.pad(x, [(0, n * rows - x.shape[3] if axis == 3 else 0) for axis in range(x.ndim)])
    return jnp.moveaxis(padded.reshape(*x.shape[:3], n, rows, *x.shape[4:]), 3, 0)


def _join(x: jax.Array, rows: int) -> jax.Array:
    """Invert _split, and return the first ``rows`` rows."""
    if x.shape[0] == 1:
        return lax.squeeze(x, (0,))
    together = jnp.moveaxis(x, 0, 3)
    return together.reshape(*x.shape[1:4], -1, *x.shape[5:])[:, :, :, :rows]


def _over_blocks(block: Callable[[Any, Any], tuple[Any, Any]], carry: Any, blocks: Any, n: int) -> tuple[Any, Any]:
    """Apply ``lax.scan``; a single block needs no loop, which jax would trace and XLA remove again."""
    if n > 1:
        return lax.scan(block, carry, blocks)
    carry, found = block(carry, jax.tree.map(lambda x: lax.squeeze(x, (0,)), blocks))
    return carry, jax.tree.map(lambda x: lax.expand_dims(x, (0,)), found)


def _use_causal_blocks(call: Attention, bias: Maybe, n: int) -> bool:
    """Return whether each block reads only the keys its rows attend to; in causal attention, half of all pairs.

    With dropout it does not, because that would change the dropout mask.
    """
    return call.is_causal and bias is None and call.dropout == 0 and 1 < n <= _MOST_UNROLLED


def _pad_or_trim(x: jax.Array, count: int) -> jax.Array:
    """Pad axis 3 with zeros, or trim it, to ``count``."""
    return jnp.pad(x[:, :, :, :count], [(0, max(count - x.shape[3], 0) if axis == 3 else 0) for axis in range(x.ndim)])


def _split_bias(bias: Maybe, n: int) -> jax.Array | None:
    """Return the bias of each block, or None if all rows share one bias."""
    return None if bias is None or bias.shape[3] == 1 else _split(bias, n)


def _is_empty(*arrays: jax.Array) -> bool:
    return any(0 in x.shape for x in arrays)


def attention_forward(
    call: Attention, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe
) -> tuple[jax.Array, ...]:
    """Return the attention output and the log-sum-exp of each row's scores; [batch, head, row, ...].

    ``bias`` is added to the scores; a boolean one is a mask, True where a query attends to a key.
    """
    if _is_empty(query, key, value):
        zeros = jnp.zeros((*query.shape[:3], value.shape[3]), value.dtype)
        return zeros, jnp.full(query.shape[:3], jnp.inf, _accumulation_dtype(query.dtype))
    q, bias = _group_heads(query, key.shape[1]), _grouped_bias(bias, key.shape[1])
    n = _blocks(q, key)
    biases = _split_bias(bias, n)

    def block(x: tuple[jax.Array, Maybe, Any], seen: int) -> tuple[jax.Array, jax.Array]:
        q, own_bias, number = x
        k, v = key[:, :, :seen], value[:, :, :seen]
        weights, logsumexp = _softmax(call.scores(q, k, bias if biases is None else own_bias, number)[0])
        weights = call.dropped(weights, number).astype(v.dtype)
        return contract("bghls,bgsd->bghld", weights, v).astype(v.dtype), logsumexp

    rows, keys = query.shape[2], key.shape[2]
    if _use_causal_blocks(call, bias, n):
        queries = _split(q, n)
        each = [block((queries[i], None, np.uint32(i)), (i + 1) * queries.shape[4]) for i in range(n)]
        out, logsumexp = (jnp.stack(parts) for parts in zip(*each, strict=True))
    else:
        blocks = _split(q, n), biases, jnp.arange(n, dtype=np.uint32)
        _, (out, logsumexp) = _over_blocks(lambda _, x: (None, block(x, keys)), None, blocks, n)
    out = _join(out, rows).reshape(*query.shape[:3], value.shape[3])
    return out, _join(logsumexp, rows).reshape(query.shape[:3])


def attention_backward(
    call: Attention, grad: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe, out: jax.Array,
    logsumexp: jax.Array, wants_bias: bool, per_head: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array, Maybe]:  # fmt: skip
    """Return the gradients of query, key, value and bias; [batch, head, row, ...].

    Those of key and value are accumulated in float32 or wider. With ``per_head`` they have one part for each head of
    query; else the heads that share a key are summed in the products.
    """
    groups, rows = key.shape[1], query.shape[2]
    if _is_empty(query, key, value):
        count = query.shape[1] if per_head else groups
        shapes = ((x.shape[0], count, *x.shape[2:]) for x in (key, value))
        of_key, of_value = (jnp.zeros(shape, _accumulation_dtype(query.dtype)) for shape in shapes)
        return jnp.zeros_like(query), of_key, of_value, None if bias is None else jnp.zeros_like(bias)
    q, do, o = (_group_heads(x, groups) for x in (query, grad, out))
    grouped = _grouped_bias(bias, groups)
    n = _blocks(q, key)
    biases = _split_bias(grouped, n)
    # a log-sum-exp stored in 16 bits (XLA_USE_BF16) is too inexact: the sums are recomputed
    known = logsumexp.dtype.itemsize >= 4
    parts_per_group = q.shape[2] if per_head else 1

    def sum_over_rows(weights: jax.Array, x: jax.Array) -> jax.Array:
        """Return the products summed over the rows, as [batch, group, parts_per_group, key, ...]."""
        if parts_per_group == q.shape[2]:
            return contract("bghls,bghld->bghsd", weights, x)
        return contract("bghls,bghld->bgsd", weights, x)[:, :, None]

    def block(sums: tuple[jax.Array, jax.Array], x: Any) -> Any:
        q, do, o, lse, own_bias, number = x
        seen = sums[0].shape[3]
        k, v = key[:, :, :seen], value[:, :, :seen]
        scores, slope = call.scores(q, k, grouped if biases is None else own_bias, number)
        weights = jnp.exp(scores - lse[..., None]) if known else _softmax(scores)[0]
        pulled = call.dropped(contract("bghld,bgsd->bghls", do, v), number)
        delta = jnp.sum(do.astype(pulled.dtype) * o.astype(pulled.dtype), -1, keepdims=True)
        inner = weights * (pulled - delta)
        narrow = (inner if slope is None else inner * slope).astype(q.dtype)
        dropped = call.dropped(weights, number).astype(do.dtype)
        sums = (
            sums[0] + sum_over_rows(narrow, q) * call.scale,
            sums[1] + sum_over_rows(dropped, do),
        )
        dq = (contract("bghls,bgsd->bghld", narrow, k) * call.scale).astype(query.dtype)
        return sums, (dq, inner if wants_bias else None)

    lse = _group_heads(logsumexp, groups)
    heads, dtype = (*q.shape[:2], parts_per_group), _accumulation_dtype(query.dtype)
    zeros = jnp.zeros((*heads, *key.shape[2:]), dtype), jnp.zeros((*heads, *value.shape[2:]), dtype)
    parts = [_split(x, n) for x in (q, do, o, lse)]
    inner: Any = None
    if _use_causal_blocks(call, bias, n):
        dk, dv = zeros[0][:, :, :, :0], zeros[1][:, :, :, :0]
        found: list[Any] = []
        for i in range(n):
            seen = min((i + 1) * parts[0].shape[4], key.shape[2])
            # without the barrier XLA reuses the scores of forward, and retains those of all layers until backward
            operands = lax.optimization_barrier([x[i] for x in parts])
            (dk, dv), (one, _) = block(
                (_pad_or_trim(dk, seen), _pad_or_trim(dv, seen)), (*operands, None, np.uint32(i))
            )
            found.append(one)
        dk, dv, dq = _pad_or_trim(dk, key.shape[2]), _pad_or_trim(dv, key.shape[2]), jnp.stack(found)
    else:
        blocks = (*parts, biases, jnp.arange(n, dtype=np.uint32))
        (dk, dv), (dq, inner) = _over_blocks(block, zeros, blocks, n)
    dbias = None
    if bias is not None and wants_bias:
        dbias = _sum_to(_join(inner, rows).reshape(*query.shape[:3], -1), bias.shape).astype(bias.dtype)
    dk, dv = (x.reshape(x.shape[0], -1, *x.shape[3:]) for x in (dk, dv))
    return _join(dq, rows).reshape(query.shape), dk, dv, dbias


def _use_cpu_kernel(call: Attention, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe) -> bool:
    """Return whether to call ATen's CPU kernel, which supports no shared heads and one vector size for all arrays."""
    plain = bias is None and call.dropout == 0 and key.shape[1] == query.shape[1] and value.shape == key.shape
    products = math.prod(query.shape) * key.shape[2]
    return (
        plain
        and cpu_kernel_call.is_profitable(products, _LEAST_PRODUCTS)
        and cpu_kernel_call.all_float32(query, key, value)
    )


def _has_cuda_kernel(call: Attention, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe) -> bool:
    """Return whether a kernel for NVIDIA GPUs supports the call. The kernels apply no dropout mask of jax.random."""
    return call.dropout == 0 and flash_attention_cuda.supports(query, key, value, bias, None, None)


def _attend(call: Attention, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe) -> tuple[jax.Array, ...]:
    """Compute ``attention_forward``, with ATen's CPU kernel where it is profitable, or with a kernel on a GPU."""
    has_cuda_kernel = _has_cuda_kernel(call, query, key, value, bias)
    has_cpu_kernel = _use_cpu_kernel(call, query, key, value, bias) and not _is_empty(query, key, value)
    if not has_cuda_kernel and not has_cpu_kernel:
        return attention_forward(call, query, key, value, bias)
    call = replace(call, key_data=None)  # unused without dropout; xla_lowering must close over no array
    xla_lowering = lambda q, k, v: attention_forward(call, q, k, v, None)
    if has_cuda_kernel:
        cuda = flash_attention_cuda.forward(call)
        return tuple(platform_dependent(xla_lowering, query, key, value, cuda=cuda))
    outs = [jax.ShapeDtypeStruct(query.shape, query.dtype), jax.ShapeDtypeStruct(query.shape[:3], query.dtype)]
    found = cpu_kernel_call.cpu_kernel_call(
        "attention", xla_lowering, [query, key, value], outs, causal=call.is_causal, scale=call.scale
    )
    return tuple(found)


def _attend_backward(
    call: Attention, grad: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe,
    out: jax.Array, logsumexp: jax.Array, wants_bias: bool, per_head: bool = False,
) -> tuple[Any, ...]:  # fmt: skip
    """Compute ``attention_backward``, with ATen's CPU kernel where it is profitable, or with a kernel on a GPU."""
    operands = [grad, query, key, value, out, logsumexp]
    has_cuda_kernel = _has_cuda_kernel(call, query, key, value, bias)
    has_cpu_kernel = (
        _use_cpu_kernel(call, query, key, value, bias)
        and not _is_empty(query, key, value)
        and cpu_kernel_call.all_float32(*operands)
    )
    if not has_cuda_kernel and not has_cpu_kernel:
        return attention_backward(call, grad, query, key, value, bias, out, logsumexp, wants_bias, per_head)
    call = replace(call, key_data=None)  # unused without dropout; xla_lowering must close over no array

    def xla_lowering(
        grad: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, out: jax.Array, lse: jax.Array
    ) -> tuple[jax.Array, ...]:
        dq, dk, dv, _ = attention_backward(call, grad, q, k, v, None, out, lse, False)
        return dq, dk.astype(k.dtype), dv.astype(v.dtype)

    if has_cuda_kernel:
        dq, dk, dv = platform_dependent(xla_lowering, *operands, cuda=flash_attention_cuda.backward(call))
    else:
        outs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (query, key, value)]
        dq, dk, dv = cpu_kernel_call.cpu_kernel_call(
            "attention_backward", xla_lowering, operands, outs, causal=call.is_causal, scale=call.scale
        )
    return dq, dk, dv, None


@lower("aten::_scaled_dot_product_efficient_attention", random=True)
def _attention(
    ctx: LoweringRuleContext, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe, with_logsumexp: bool,
    dropout: float = 0.0, is_causal: bool = False, scale: float | None = None,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Return the output, the log-sum-exp (padded to its output spec), and the key of the dropout mask."""
    key_data = jax.random.key_data(ctx.key())
    call = Attention(scale or 1 / math.sqrt(query.shape[3]), is_causal, dropout, key_data)
    out, logsumexp = _attend(call, query, key, value, bias)
    shape, dtype = ctx.out_specs[1][0], ctx.dtype_of(1)
    padding = [(0, 0), (0, 0), (0, shape[2] - query.shape[2])]
    saved = jnp.pad(logsumexp, padding) if with_logsumexp else jnp.zeros(shape)
    return out, convert(saved, dtype), *(convert(key_data[i], ctx.dtype_of(2 + i)) for i in (0, 1))


@lower("aten::_scaled_dot_product_efficient_attention_backward", ctx=True)
def _attention_backward(
    ctx: LoweringRuleContext, grad: jax.Array, query: jax.Array, key: jax.Array, value: jax.Array, bias: Maybe,
    out: jax.Array, logsumexp: jax.Array, seed: jax.Array, offset: jax.Array, dropout: float, mask: list[bool],
    is_causal: bool = False, scale: float | None = None,
) -> tuple[Maybe, ...]:  # fmt: skip
    """Return the gradients of query, key, value and bias; None for a bias that does not require one."""
    key_data = jnp.stack([seed.astype(np.uint32), offset.astype(np.uint32)])
    call = Attention(scale or 1 / math.sqrt(query.shape[3]), is_causal, dropout, key_data)
    lse = logsumexp[:, :, : query.shape[2]]
    # In a traced graph of torch 2.11 to 2.13, heads that share a key have a gradient each; else it is their sum.
    per_head = ctx.out_specs[1][0][1] == query.shape[1]
    dq, dk, dv, dbias = _attend_backward(call, grad, query, key, value, bias, out, lse, mask[3], per_head)
    return dq, dk.astype(key.dtype), dv.astype(value.dtype), dbias


def _sum_to(x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Sum over the dimensions that were broadcast from ``shape``."""
    full = (1,) * (x.ndim - len(shape)) + shape
    over = tuple(i for i, size in enumerate(full) if size == 1 and x.shape[i] != 1)
    return jnp.sum(x, over, keepdims=True).reshape(shape)
