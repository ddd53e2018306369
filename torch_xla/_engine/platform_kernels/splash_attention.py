"""Splash attention, forward and backward, of arrays [batch, head, length, size], with causal, window and segment masks.

TPU: jax's Pallas kernel, which skips fully masked blocks. Other platforms: lowering/rules/attention.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.rules.attention import Attention, attention_backward, attention_forward
from torch_xla._engine.platform_kernels.flash_attention_tpu import LANES, fit_block_size
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding, shard_kernel

Maybe = jax.Array | None
_FLOATS = (np.dtype(jnp.bfloat16), np.dtype(np.float32))


@dataclass(frozen=True, slots=True)
class SplashAttentionOptions:
    """The static arguments of a call. ``blocks`` and ``layouts``: (field, value) of jax's BlockSizes."""

    causal: bool
    soft_cap: float | None
    window: int | None
    blocks: tuple[tuple[str, int], ...]
    fused_backward: bool
    layouts: tuple[tuple[str, str], ...]
    ids_spec: tuple[Any, ...]

    @property
    def attention(self) -> Attention:
        return Attention(1.0, self.causal, soft_cap=self.soft_cap, window=self.window)


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: Maybe, options: SplashAttentionOptions, layout: KernelSharding | None
) -> tuple[jax.Array, jax.Array]:
    """Return the attention output, and the log-sum-exp of each row's scores."""

    def kernel(*arrays: Any) -> Any:
        def default(q: Any, k: Any, v: Any, ids: Maybe) -> Any:
            return attention_forward(options.attention, q, k, v, _same_segment_mask(ids))

        return platform_dependent(default, *arrays, tpu=_forward_tpu(options) if _tpu_supports(*arrays[:3]) else None)

    spec = (None,) * 4 if layout is None else layout.spec
    call = shard_kernel(layout, kernel, _specs(spec, ids, options), [spec, spec[:3]])
    found: tuple[jax.Array, jax.Array] = call(q, k, v, _to_int32(ids))
    return found


def backward(
    grad: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, ids: Maybe, out: jax.Array, sums: jax.Array,
    options: SplashAttentionOptions, layout: KernelSharding | None,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Return the gradients of q, k and v."""

    def kernel(*arrays: Any) -> Any:
        def default(grad: Any, q: Any, k: Any, v: Any, ids: Maybe, out: Any, sums: Any) -> Any:
            dq, dk, dv, _ = attention_backward(
                options.attention, grad, q, k, v, _same_segment_mask(ids), out, sums, False
            )
            return dq, dk.astype(k.dtype), dv.astype(v.dtype)

        return platform_dependent(default, *arrays, tpu=_backward_tpu(options) if _tpu_supports(*arrays[1:4]) else None)

    spec = (None,) * 4 if layout is None else layout.spec
    call = shard_kernel(layout, kernel, [spec, *_specs(spec, ids, options), spec, spec[:3]], [spec] * 3)
    found: tuple[jax.Array, ...] = call(grad, q, k, v, _to_int32(ids), out, sums)
    return found


def attention(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: Maybe, options: SplashAttentionOptions, layout: KernelSharding | None
) -> Any:
    """Return the attention output, differentiable by jax."""

    @jax.custom_vjp
    def call(q: Any, k: Any, v: Any) -> Any:
        return forward(q, k, v, ids, options, layout)[0]

    def forward_rule(q: Any, k: Any, v: Any) -> Any:
        out, sums = forward(q, k, v, ids, options, layout)
        return out, (q, k, v, out, sums)

    def backward_rule(residuals: Any, grad: Any) -> Any:
        q, k, v, out, sums = residuals
        return backward(grad, q, k, v, ids, out, sums, options, layout)

    call.defvjp(forward_rule, backward_rule)
    return call(q, k, v)


def _specs(spec: Any, ids: Maybe, options: SplashAttentionOptions) -> list[Any]:
    return [spec, spec, spec, None if ids is None else options.ids_spec]


def _to_int32(ids: Maybe) -> Maybe:
    return None if ids is None else ids.astype(np.int32)


def _same_segment_mask(ids: Maybe) -> Maybe:
    return None if ids is None else (ids[:, :, None] == ids[:, None, :])[:, None]


def _tpu_supports(q: Any, k: Any, v: Any) -> bool:
    full_blocks = q.shape[2] % LANES == 0 and k.shape[2] % LANES == 0 and 0 not in (*q.shape, *k.shape)
    return full_blocks and k.shape == v.shape and q.dtype in _FLOATS


def _kernel(
    options: SplashAttentionOptions, heads: int, q_length: int, kv_length: int, sums: bool
) -> Callable[..., Any]:
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

    shape = q_length, kv_length
    mask: Any = masks.CausalMask(shape) if options.causal else masks.FullMask(shape)
    if options.window is not None:
        mask &= masks.LocalMask(shape, (options.window, options.window), 0)
    sizes: dict[str, Any] = {
        name: fit_block_size(size, q_length if "_q" in name else kv_length) for name, size in options.blocks
    }
    for outer, inner in (("block_kv", "block_kv_compute"), ("block_kv_dkv", "block_kv_dkv_compute")):
        sizes[inner] = fit_block_size(sizes[inner], sizes[outer])
    if options.fused_backward:
        sizes = {name: size for name, size in sizes.items() if not name.endswith("_dq")}
    layouts = {name: kernel.QKVLayout[value] for name, value in options.layouts}
    blocks = kernel.BlockSizes(**sizes, **layouts, use_fused_bwd_kernel=options.fused_backward)
    made = kernel.make_splash_mha(
        masks.MultiHeadMask([mask] * heads), head_shards=1, q_seq_shards=1, block_sizes=blocks,
        attn_logits_soft_cap=options.soft_cap, save_residuals=sums,
    )  # fmt: skip

    def of_batch(q: Any, k: Any, v: Any, ids: Maybe) -> Any:
        segments = None if ids is None else kernel.SegmentIds(ids, ids)
        return made(q, k, v, segments)

    return jax.vmap(of_batch)


def _pad_to_block(x: Any) -> Any:
    return jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % LANES)])


def _forward_tpu(options: SplashAttentionOptions) -> Callable[..., Any]:
    def run(q: Any, k: Any, v: Any, ids: Maybe) -> Any:
        kernel = _kernel(options, q.shape[1], q.shape[2], k.shape[2], sums=True)
        out, (sums,) = kernel(_pad_to_block(q), _pad_to_block(k), _pad_to_block(v), ids)
        return out[..., : v.shape[-1]], sums.astype(np.float32)

    return run


def _backward_tpu(options: SplashAttentionOptions) -> Callable[..., Any]:
    """Return the gradient function; it runs the forward pass again, as jax does not expose the backward kernel."""

    def run(grad: Any, q: Any, k: Any, v: Any, ids: Maybe, *_: Any) -> Any:
        kernel = _kernel(options, q.shape[1], q.shape[2], k.shape[2], sums=False)
        _, vjp = jax.vjp(lambda *arrays: kernel(*arrays, ids), _pad_to_block(q), _pad_to_block(k), _pad_to_block(v))
        return tuple(g[..., : x.shape[-1]] for g, x in zip(vjp(_pad_to_block(grad)), (q, k, v), strict=True))

    return run
