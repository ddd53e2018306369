"""Flash attention, forward and backward: arrays are [batch, head, length, size].

TPU: jax's Pallas kernel, of arrays padded to its tiles. CUDA: cuDNN, or jax's Pallas kernel in Triton, where one takes
the call. Everywhere else, and for calls that a kernel does not take: lowering/attention.py.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.kernels import flash_cuda, flash_tpu
from torch_xla._engine.kernels.by_platform import by_platform
from torch_xla._engine.kernels.split import Layout, on_each
from torch_xla._engine.lowering.attention import Attention, attend, attend_backward

Maybe = jax.Array | None


@dataclass(frozen=True, slots=True)
class Options:
    """What of a call is no array. ``blocks``: sizes of the TPU kernel's blocks, by name, in the order of names."""

    causal: bool
    scale: float
    blocks: tuple[tuple[str, int], ...] = ()


def forward(
    q: jax.Array, k: jax.Array, v: jax.Array, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, options: Options,
    layout: Layout | None,
) -> tuple[jax.Array, jax.Array]:  # fmt: skip
    """The result, and the logarithm of the sum of each row's weights."""

    def kernel(*arrays: Any) -> Any:
        return by_platform(
            functools.partial(_forward, options),
            *arrays,
            tpu=flash_tpu.forward(options) if flash_tpu.takes(*arrays[:3]) else None,
            cuda=flash_cuda.forward(options) if flash_cuda.takes(*arrays) else None,
        )

    ins, outs = _specs(layout, ab, q_ids)
    found: tuple[jax.Array, jax.Array] = on_each(layout, kernel, ins, outs)(
        q, k, v, ab, _narrow(q_ids), _narrow(kv_ids)
    )
    return found


def backward(
    grad: jax.Array, q: jax.Array, k: jax.Array, v: jax.Array, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, out: jax.Array,
    logsumexp: jax.Array, options: Options, layout: Layout | None, wants_ab: bool,
) -> tuple[jax.Array, ...]:  # fmt: skip
    """Gradients of q, k, v, and of ab where it is wanted."""

    def kernel(*arrays: Any) -> Any:
        return by_platform(
            functools.partial(_backward, options, wants_ab),
            *arrays,
            tpu=flash_tpu.backward(options, wants_ab) if flash_tpu.takes(*arrays[1:4]) else None,
            cuda=flash_cuda.backward(options) if flash_cuda.takes(*arrays[1:7]) else None,
        )

    ins, outs = _specs(layout, ab, q_ids)
    spec, sums = outs
    results = [spec] * (4 if wants_ab else 3)
    call = on_each(layout, kernel, [spec, *ins, spec, sums], results)
    found: tuple[jax.Array, ...] = call(grad, q, k, v, ab, _narrow(q_ids), _narrow(kv_ids), out, logsumexp)
    return found


def _specs(layout: Layout | None, ab: Maybe, q_ids: Maybe) -> tuple[list[Any], list[Any]]:
    """Partition specs of the arguments and results of the forward pass."""
    spec = (None,) * 4 if layout is None else layout.spec
    ids = None if q_ids is None else (spec[0], None)
    return [spec, spec, spec, None if ab is None else spec, ids, ids], [spec, spec[:3]]


def _narrow(ids: Maybe) -> Maybe:
    return None if ids is None else ids.astype(np.int32)


def _seen(scale: float, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> Maybe:
    """The bias and the segments as one bias. jax's kernel scales it together with the products."""
    scaled = None if ab is None else ab * jnp.asarray(scale, jnp.promote_types(ab.dtype, np.float32))
    if q_ids is None or kv_ids is None:
        return scaled
    same = (q_ids[:, :, None] == kv_ids[:, None, :])[:, None]
    return same if scaled is None else jnp.where(same, scaled, -jnp.inf)


def _forward(options: Options, q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> Any:
    return attend(Attention(options.scale, options.causal), q, k, v, _seen(options.scale, ab, q_ids, kv_ids))


def _backward(
    options: Options, wants_ab: bool, grad: Any, q: Any, k: Any, v: Any, ab: Maybe, q_ids: Maybe, kv_ids: Maybe,
    out: Any, logsumexp: Any,
) -> Any:  # fmt: skip
    call = Attention(options.scale, options.causal)
    bias = _seen(options.scale, ab, q_ids, kv_ids)
    dq, dk, dv, dab = attend_backward(call, grad, q, k, v, bias, out, logsumexp, wants_ab)
    gradients = dq, dk[:, :, 0].astype(k.dtype), dv[:, :, 0].astype(v.dtype)
    return (
        gradients if not wants_ab or dab is None or ab is None else (*gradients, (dab * options.scale).astype(ab.dtype))
    )
