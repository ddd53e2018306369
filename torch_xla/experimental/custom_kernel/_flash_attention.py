"""Flash attention, differentiable: ``flash_attention`` and ``FlashAttention``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch

from torch_xla._engine.platform_kernels import flash_attention as flash_kernel
from torch_xla._engine.platform_kernels.flash_attention_tpu import BLOCKS
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import (
    check_on_xla,
    define_operator,
    encode_sharding,
    format_tensors,
)

Maybe = torch.Tensor | None

_ARGUMENTS = "Tensor q, Tensor k, Tensor v, Tensor? ab, Tensor? q_segment_ids, Tensor? kv_segment_ids"
_OPTIONS = "bool causal, float sm_scale, str partition_spec, str mesh"


def _layout(partition_spec: str, mesh: str) -> KernelSharding | None:
    layout = operators.decode_sharding("flash_attention", partition_spec, mesh, 4)
    if layout is not None and any(entry is not None for entry in layout.spec[2:]):
        raise ValueError(
            f"flash_attention: partition_spec {partition_spec} shards the length or the head size; only the batch and "
            "the heads, the first two dimensions, can be sharded"
        )
    return layout


def _options(causal: bool, scale: float) -> tuple[flash_kernel.FlashAttentionOptions, str]:
    """Return the options for jax, and their part of the program's name."""
    wanted = {**BLOCKS, **FlashAttention.DEFAULT_BLOCK_SIZES}
    sizes = tuple((name, int(wanted[name])) for name in sorted(BLOCKS))
    suffix = "" if dict(sizes) == BLOCKS else "".join(f"_{size}" for _, size in sizes)
    return flash_kernel.FlashAttentionOptions(causal, scale, sizes), suffix


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ab: Maybe, q_ids: Maybe, kv_ids: Maybe, causal: bool,
    scale: float, partition_spec: str, mesh: str,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    options, suffix = _options(causal, scale)
    layout = _layout(partition_spec, mesh)
    out, sums = operators.call(
        f"flash_attention{suffix}", flash_kernel.forward, q, k, v, ab, q_ids, kv_ids, options, layout
    )
    return out, sums


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=sums)


def _run_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ab: Maybe, q_ids: Maybe, kv_ids: Maybe,
    out: torch.Tensor, sums: torch.Tensor, causal: bool, scale: float, partition_spec: str, mesh: str,
    wants_ab: bool,
) -> list[torch.Tensor]:  # fmt: skip
    options, suffix = _options(causal, scale)
    arrays = grad, q, k, v, ab, q_ids, kv_ids, out, sums
    layout = _layout(partition_spec, mesh)
    return list(
        operators.call(f"flash_attention_backward{suffix}", flash_kernel.backward, *arrays, options, layout, wants_ab)
    )


def _fake_backward(grad: torch.Tensor, *rest: Any) -> list[torch.Tensor]:
    return [torch.empty_like(t) for t in rest[: 4 if rest[-1] else 3]]


_backward_op = define_operator(
    f"flash_attention_backward(Tensor grad, {_ARGUMENTS}, Tensor out, Tensor sums, {_OPTIONS}, bool wants_ab)"
    " -> Tensor[]",
    _run_backward,
    _fake_backward,
)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    ctx.save_for_backward(*inputs[:6], *output)
    ctx.options = inputs[6:]


def _gradients(ctx: Any, grad: torch.Tensor, _: Maybe) -> tuple[Maybe, ...]:
    wants_ab = ctx.needs_input_grad[3]
    found = _backward_op(grad, *ctx.saved_tensors, *ctx.options, wants_ab)
    return (*found, *(None,) * (10 - len(found)))


_forward_op = define_operator(
    f"flash_attention({_ARGUMENTS}, {_OPTIONS}) -> (Tensor, Tensor)", _run, _fake, gradient=(_setup_context, _gradients)
)


class FlashAttention(torch.autograd.Function):
    """Flash attention as an autograd Function: ``FlashAttention.apply`` takes flash_attention's arguments in order.

    ``DEFAULT_BLOCK_SIZES`` are the block sizes of the TPU kernel by name. They are read at each call, so they can be
    changed, and are reduced until they divide the lengths. Other platforms choose their own block sizes.
    """

    MIN_BLOCK_SIZE = 128
    DEFAULT_MASK_VALUE = -0.7 * torch.finfo(torch.float32).max
    DEFAULT_BLOCK_SIZES: ClassVar[dict[str, int]] = dict(BLOCKS)
    NUM_LANES = 128
    NUM_SUBLANES = 8

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False,
        q_segment_ids: Maybe = None, kv_segment_ids: Maybe = None, sm_scale: float = 1.0, ab: Maybe = None,
        partition_spec: Any = None, mesh: Any = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return [batch, heads, length, size], in the dtype of q.

        Args:
          ctx: context of autograd.
          q, k, v, causal, q_segment_ids, kv_segment_ids, sm_scale, ab, partition_spec, mesh: see flash_attention.
        """
        options = causal, float(sm_scale), *encode_sharding("flash_attention", partition_spec, mesh)
        _check(q, k, v, ab, q_segment_ids, kv_segment_ids)
        inputs = (q, k, v, ab, q_segment_ids, kv_segment_ids, *options)
        outputs = _forward_op(*inputs)
        _setup_context(ctx, inputs, outputs)
        ctx.wants_ab = ctx.needs_input_grad[7]
        return outputs[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        """Return the gradients of q, k, v and ab.

        Args:
          ctx: context of autograd.
          grads: the gradient of the output.
        """
        found = _backward_op(grads[0], *ctx.saved_tensors, *ctx.options, ctx.wants_ab)
        return *found[:3], None, None, None, None, found[3] if ctx.wants_ab else None, None, None


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, q_segment_ids: Maybe = None,
    kv_segment_ids: Maybe = None, sm_scale: float = 1.0, *, ab: Maybe = None,
    partition_spec: tuple[Any, ...] | None = None, mesh: Any = None,
) -> torch.Tensor:  # fmt: skip
    """Compute softmax((q @ k.mT + ab) * sm_scale) @ v blockwise, without storing all attention weights; differentiable.

    A row without visible keys is zero. TPU: jax's Pallas kernel, for float32 and bfloat16; GPU: cuDNN or Triton, for 16
    bits without ab and segments; otherwise blocks of at most 64 Mi weights, in a loop. ``FlashAttention`` has the block
    sizes.

    Args:
      q, k, v: [batch, heads, length, size], of one floating dtype (under autocast, its dtype). Additional leading
        dimensions are batch dimensions.
      causal: a position sees no later position; position 0 of q is position 0 of k.
      q_segment_ids, kv_segment_ids: integers, [batch, length]; a position sees the positions of its segment. Both or
        neither.
      sm_scale: factor of the scores. Unlike in torch, the default is 1.
      ab: bias that is added to q @ k.mT before scaling, [batch, heads, length of q, length of k], or expandable to it.
      partition_spec, mesh: under SPMD, the sharding of q, k, v and the result over the mesh's axes; default mesh: the
        global mesh. Each device computes its shard, so only batch and heads can be sharded. Without a spec, a program
        over several devices uses plain operations, because XLA cannot partition TPU and GPU kernels.

    Returns:
      [batch, heads, length of q, size of v], in the dtype of q.

    Raises:
      ValueError, TypeError: shapes, dtypes or specs do not match, or a tensor is not on xla.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.custom_kernel import flash_attention
      >>> q, k, v = (torch.randn(2, 4, 128, 32, device="xla") for _ in range(3))
      >>> out = flash_attention(q, k, v, causal=True, sm_scale=32**-0.5)
      >>> expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
      >>> torch.allclose(out, expected, atol=1e-5)
      True
    """
    q, k, v = operators.autocast(q, k, v)
    _check(q, k, v, ab, q_segment_ids, kv_segment_ids)
    spec, on = encode_sharding("flash_attention", partition_spec, mesh)
    shape = q.shape
    if q.dim() > 4:
        q, k, v, ab, q_segment_ids, kv_segment_ids = _flat(q, k, v, ab, q_segment_ids, kv_segment_ids)
        spec = _flat_spec(partition_spec, len(shape)) if partition_spec is not None else spec
    if ab is not None:
        ab = ab.expand(*q.shape[:3], k.shape[2])
    out, _ = _forward_op(q, k, v, ab, q_segment_ids, kv_segment_ids, causal, float(sm_scale), spec, on)
    result: torch.Tensor = out.reshape(*shape[:-1], v.shape[-1]) if len(shape) > 4 else out
    return result


def _flat(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ab: Maybe, *ids: Maybe) -> list[Any]:
    """Flatten the leading dimensions into one batch dimension."""
    bias = None if ab is None else ab.expand(*q.shape[:-1], k.shape[-2]).flatten(0, -4)
    return [
        q.flatten(0, -4),
        k.flatten(0, -4),
        v.flatten(0, -4),
        bias,
        *(i if i is None else i.flatten(0, -2) for i in ids),
    ]


def _flat_spec(partition_spec: tuple[Any, ...], rank: int) -> str:
    if len(partition_spec) != rank or any(entry is not None for entry in partition_spec[1:-3]):
        raise ValueError(
            f"flash_attention: partition_spec {partition_spec} must have {rank} entries, for q, k and v with {rank} "
            "dimensions, and may shard only the first of the batch dimensions"
        )
    return str((partition_spec[0], *partition_spec[-3:]))


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ab: Maybe, q_ids: Maybe, kv_ids: Maybe) -> None:
    check_on_xla("flash_attention", q=q, k=k, v=v, ab=ab, q_segment_ids=q_ids, kv_segment_ids=kv_ids)
    together = format_tensors(q, k, v)
    if q.dim() < 4 or not q.dim() == k.dim() == v.dim():
        raise ValueError(f"flash_attention: q, k and v must be [batch, heads, length, size], got {together}")
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            f"flash_attention: q, k and v must have the same batch and heads, q and k the same size, k and v the same "
            f"length; got {together} (repeat_interleave k and v where queries share them)"
        )
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        raise TypeError(f"flash_attention: q, k and v must be of one floating dtype, got {together}")
    if (q_ids is None) != (kv_ids is None):
        raise ValueError("flash_attention: pass both q_segment_ids and kv_segment_ids, or neither")
    for name, ids, t in (("q_segment_ids", q_ids, q), ("kv_segment_ids", kv_ids, k)):
        if ids is not None and (ids.shape != (*t.shape[:-3], t.shape[-2]) or ids.dtype.is_floating_point):
            raise ValueError(
                f"flash_attention: {name} must be integers of shape {[*t.shape[:-3], t.shape[-2]]}, "
                f"got {format_tensors(ids)}"
            )
    if ab is not None and not ab.dtype.is_floating_point:
        raise TypeError(
            f"flash_attention: ab must be of a floating dtype, got {format_tensors(ab)}; a mask is 0 and -inf"
        )


def _run_upstream(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, casual: bool = False) -> torch.Tensor:
    return flash_attention(q, k, v, casual)


def _setup_upstream_context(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs[:3])
    ctx.causal = inputs[3]


def _gradients_upstream(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    """Recompute the sums, which upstream's operator does not return."""
    inputs = (*ctx.saved_tensors, None, None, None, ctx.causal, 1.0, "", "")
    outputs = _forward_op(*inputs)
    return (*_backward_op(grad, *inputs[:6], *outputs, *inputs[6:], False), None)


# The last argument has upstream's name.
define_operator(
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor",
    _run_upstream,
    lambda q, k, v, casual=False: q.new_empty((*q.shape[:-1], v.shape[-1])),
    "xla",
    (_setup_upstream_context, _gradients_upstream),
)
