"""Flash attention, forward and backward, of arrays [batch, head, length, size].

TPU                                   jax's Pallas kernel, with arrays padded to its tiles
CUDA                                  cuDNN, or the Triton kernel of a jax that has it, if one of them supports the call
other platforms, unsupported calls    lowering/rules/attention.py
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering import flash_attention_cuda
from torch_xla._engine.lowering.platform_dispatch import platform_dependent
from torch_xla._engine.lowering.rules.attention import Attention, attention_backward, attention_forward
from torch_xla._engine.platform_kernels import flash_attention_tpu
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding, shard_kernel

Maybe = jax.Array | None


@dataclass(frozen=True, slots=True)
class FlashAttentionOptions:
    """The static arguments of a call. ``blocks``: (name, size) of the TPU kernel's blocks, sorted by name."""

    causal: bool
    scale: float
    blocks: tuple[tuple[str, int], ...] = ()


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, options: FlashAttentionOptions,
    layout: KernelSharding | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """Return the attention output, and the log-sum-exp of each row's scores."""

    def kernel(*arrays: Any) -> Any:
        return platform_dependent(
            functools.partial(_forward, options),
            *arrays,
            tpu=flash_attention_tpu.forward(options) if flash_attention_tpu.supports(*arrays[:3]) else None,
            cuda=flash_attention_cuda.forward(options) if flash_attention_cuda.supports(*arrays) else None,
        )

    ins, outs = _specs(layout, ab, q_ids)
    found: tuple[jax.Array, jax.Array] = shard_kernel(layout, kernel, ins, outs)(
        q, k, v, ab, _kernel_dtypes(q_ids), _kernel_dtypes(kv_ids)
    )
    return found


def backward(
    grad: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, out: jax.Array,
    logsumexp: jax.Array, options: FlashAttentionOptions, layout: KernelSharding | None, wants_ab: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Return the gradients of q, k, v, and of ab if requested."""

    def kernel(*arrays: Any) -> Any:
        return platform_dependent(
            functools.partial(_backward, options, wants_ab),
            *arrays,
            tpu=flash_attention_tpu.backward(options, wants_ab) if flash_attention_tpu.supports(*arrays[1:4]) else None,
            cuda=flash_attention_cuda.backward(options) if flash_attention_cuda.supports(*arrays[1:7]) else None,
        )

    ins, outs = _specs(layout, ab, q_ids)
    spec, sums = outs
    results = [spec] * (4 if wants_ab else 3)
    call = shard_kernel(layout, kernel, [spec, *ins, spec, sums], results)
    found: tuple[jax.Array, ...] = call(
        grad, q, k, v, ab, _kernel_dtypes(q_ids), _kernel_dtypes(kv_ids), out, logsumexp
    )
    return found


def _specs(layout: KernelSharding | None, ab: Maybe, q_ids: Maybe) -> tuple[list[Any], list[Any]]:
    """Return the partition specs of the arguments and results of the forward pass."""
    spec = (None,) * 4 if layout is None else layout.spec
    ids = None if q_ids is None else (spec[0], None)
    return [spec, spec, spec, None if ab is None else spec, ids, ids], [spec, spec[:3]]


def _kernel_dtypes(ids: Maybe) -> Maybe:
    return None if ids is None else ids.astype(np.int32)


def _combined_bias(scale: float, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> Maybe:
    """Combine the bias and the segment mask. The bias is scaled, as jax's kernel scales it together with the scores."""
    scaled = None if ab is None else ab * jnp.asarray(scale, jnp.promote_types(ab.dtype, np.float32))
    if q_ids is None or kv_ids is None:
        return scaled
    same = (q_ids[:, :, None] == kv_ids[:, None, :])[:, None]
    return same if scaled is None else jnp.where(same, scaled, -jnp.inf)


def _forward(options: FlashAttentionOptions, q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> Any:
    return attention_forward(
        Attention(options.scale, options.causal), q, k, v, _combined_bias(options.scale, ab, q_ids, kv_ids)
    )


def _backward(
    options: FlashAttentionOptions, wants_ab: bool, grad: Any, q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe,
    kv_ids: Maybe, out: Any, logsumexp: Any,
) -> Any:  # fmt: skip
    call = Attention(options.scale, options.causal)
    bias = _combined_bias(options.scale, ab, q_ids, kv_ids)
    dq, dk, dv, dab = attention_backward(call, grad, q, k, v, bias, out, logsumexp, wants_ab)
    gradients = dq, dk.astype(k.dtype), dv.astype(v.dtype)
    return (
        gradients if not wants_ab or dab is None or ab is None else (*gradients, (dab * options.scale).astype(ab.dtype))
    )
