"""Flash attention with its gradient."""

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
            f"flash_attention: partition_spec {partition_spec} splits the length or the size of heads; only the batch "
            "and the heads, the first two dimensions, can be split"
        )
    return layout


def _options(causal: bool, scale: float) -> tuple[flash_kernel.FlashAttentionOptions, str]:
    """Options for jax, and what the program's name has of them."""
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
    """Flash attention as autograd has it: ``FlashAttention.apply`` takes what flash_attention takes, in order.

    ``DEFAULT_BLOCK_SIZES`` are the sizes of the TPU kernel's blocks, by name, and may be changed: they are read at each
    call, and made smaller until they divide the lengths. Other platforms choose their own.
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
        """[batch, heads, length, size], as q."""
        options = causal, float(sm_scale), *encode_sharding("flash_attention", partition_spec, mesh)
        _check(q, k, v, ab, q_segment_ids, kv_segment_ids)
        inputs = (q, k, v, ab, q_segment_ids, kv_segment_ids, *options)
        outputs = _forward_op(*inputs)
        _setup_context(ctx, inputs, outputs)
        ctx.wants_ab = ctx.needs_input_grad[7]
        return outputs[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        """The gradients of q, k, v and ab."""
        found = _backward_op(grads[0], *ctx.saved_tensors, *ctx.options, ctx.wants_ab)
        return *found[:3], None, None, None, None, found[3] if ctx.wants_ab else None, None, None


def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False, q_segment_ids: Maybe = None,
    kv_segment_ids: Maybe = None, sm_scale: float = 1.0, *, ab: Maybe = None,
    partition_spec: tuple[Any, ...] | None = None, mesh: Any = None,
) -> torch.Tensor:  # fmt: skip
    """Attention whose weights never exist all at once: softmax((q @ k.mT + ab) * sm_scale) @ v, with its gradient.

    Args:
      q, k, v: [batch, heads, length, size], of one floating dtype (under autocast, of that one); the result is as q,
        with the size of v. Further dimensions in front count as batch.
      causal: no position sees a later one; position 0 of q is that of k.
      q_segment_ids, kv_segment_ids: integers, [batch, length]; a position sees those of its own segment. Both or none.
      sm_scale: factor of the scores. Unlike torch's, the default is 1.
      ab: added to the products before they are scaled, of the shape [batch, heads, length of q, length of k], or one
        that expands to it.
      partition_spec, mesh: under SPMD, how q, k, v and the result are split over the mesh's axes; by default the
        global mesh. Each device computes its own part, which only a split of batch and heads allows. Without them a
        program over several devices is split by XLA, which cannot split kernels of TPUs and GPUs: it gets plain
        operations.

    A row that sees nothing is zero. TPU: jax's Pallas kernel, of float32 and bfloat16; GPU: cuDNN or Triton, of 16 bits
    without ab and segments; otherwise blocks of at most 64 Mi weights, in a loop. ``FlashAttention`` holds block sizes.

    Raises ValueError or TypeError for shapes, dtypes and specs that do not fit, and tensors that are not on xla.
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
    """The dimensions in front as one."""
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
            f"flash_attention: partition_spec {partition_spec} of q, k and v with {rank} dimensions must have as many "
            "entries, and split none of the batch's dimensions but the first"
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
        raise ValueError("flash_attention: q_segment_ids and kv_segment_ids are given together or not at all")
    for name, ids, t in (("q_segment_ids", q_ids, q), ("kv_segment_ids", kv_ids, k)):
        if ids is not None and (ids.shape != (*t.shape[:-3], t.shape[-2]) or ids.dtype.is_floating_point):
            raise ValueError(
                f"flash_attention: {name} must be integers of shape {[*t.shape[:-3], t.shape[-2]]}, got {format_tensors(ids)}"
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
    """It gives no sums, so they are computed again."""
    inputs = (*ctx.saved_tensors, None, None, None, ctx.causal, 1.0, "", "")
    outputs = _forward_op(*inputs)
    return (*_backward_op(grad, *inputs[:6], *outputs, *inputs[6:], False), None)


# The name of the last argument is upstream's.
define_operator(
    "flash_attention(Tensor q, Tensor k, Tensor v, bool casual=False) -> Tensor",
    _run_upstream,
    lambda q, k, v, casual=False: q.new_empty((*q.shape[:-1], v.shape[-1])),
    "xla",
    (_setup_upstream_context, _gradients_upstream),
)
