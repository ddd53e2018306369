"""Splash attention, differentiable: its TPU kernel skips the blocks that a causal mask or a window hides."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import torch

from torch_xla._engine.platform_kernels import splash_attention as splash_kernel
from torch_xla._engine.platform_kernels.shard_kernel import KernelSharding
from torch_xla.distributed.spmd import get_global_mesh
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import check_on_xla, define_operator, format_tensors

__all__ = [
    "SplashAttention",
    "SplashAttentionConfig",
    "sa_custom_backward",
    "sa_custom_backward_fake",
    "sa_custom_forward",
    "sa_custom_forward_fake",
    "splash_attention",
    "splash_attention_jax_wrapper",
    "tpu_splash_attention_jax_call_wrapper",
]

Maybe = torch.Tensor | None
Spec = tuple[tuple[str, ...] | str | None, ...]


@dataclass(eq=True, unsafe_hash=True)
class SplashAttentionConfig:
    """Configuration of the TPU kernel, and sharding over a mesh.

    Args:
      sa_block_*: block sizes of the kernel; each is reduced until it divides the length.
      sa_use_fused_bwd_kernel: use one kernel for all gradients instead of two.
      sa_q_layout, sa_k_layout, sa_v_layout: memory layout on the chip, HEAD_DIM_MINOR or SEQ_MINOR.
      mesh: ``str(mesh)``, under SPMD; default: the global mesh. Without a mesh XLA partitions plain operations.
      qkv_partition_spec, segment_ids_partition_spec: sharding of q, k, v and the result, and of segment ids.
      attentiontype_local_sliding, slide_window_size: a position sees this number of positions on each side.
    """

    sa_block_q: int = 2048
    sa_block_kv: int = 2048
    sa_block_kv_compute: int = 2048
    sa_block_q_dkv: int = 2048
    sa_block_kv_dkv: int = 2048
    sa_block_kv_dkv_compute: int = 2048
    sa_block_q_dq: int = 2048
    sa_block_kv_dq: int = 2048
    sa_use_fused_bwd_kernel: bool = True
    sa_q_layout: str = "HEAD_DIM_MINOR"
    sa_k_layout: str = "HEAD_DIM_MINOR"
    sa_v_layout: str = "HEAD_DIM_MINOR"
    mesh: str | None = None
    qkv_partition_spec: Spec = (("data", "fsdp"), None, None, None)
    segment_ids_partition_spec: Spec = (("data", "fsdp"), None)
    attentiontype_local_sliding: bool = False
    slide_window_size: int | None = None

    def to_json(self) -> str:
        """Encode as JSON text, which ``splash_attention`` takes."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, data: str) -> SplashAttentionConfig:
        """Decode the output of ``to_json``.

        Args:
          data: the text.

        Raises:
          ValueError: invalid text.
          TypeError: unknown fields.
        """
        return cls(**{name: _tuples(value) for name, value in json.loads(data).items()})


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _options(
    config: SplashAttentionConfig, causal: bool | None, soft_cap: float | None
) -> splash_kernel.SplashAttentionOptions:
    window = config.slide_window_size if config.attentiontype_local_sliding else None
    if config.attentiontype_local_sliding and (window is None or window < 0):
        raise ValueError(f"splash_attention: attentiontype_local_sliding requires a slide_window_size, got {window}")
    fields = [field.name for field in dataclasses.fields(config)]
    blocks = tuple((name[3:], int(getattr(config, name))) for name in fields if name.startswith("sa_block_"))
    layouts = tuple((name[3:], str(getattr(config, name))) for name in fields if name.endswith("_layout"))
    wrong = [value for _, value in layouts if value not in ("HEAD_DIM_MINOR", "SEQ_MINOR")]
    if wrong:
        raise ValueError(f"splash_attention: a layout must be HEAD_DIM_MINOR or SEQ_MINOR, got {wrong[0]}")
    return splash_kernel.SplashAttentionOptions(
        bool(causal), soft_cap, window, blocks, config.sa_use_fused_bwd_kernel, layouts, _ids_spec(config)
    )


def _ids_spec(config: SplashAttentionConfig) -> Spec:
    return tuple(config.segment_ids_partition_spec)


def _layout(config: SplashAttentionConfig) -> KernelSharding | None:
    mesh = config.mesh
    if mesh is None:
        everywhere = get_global_mesh()
        mesh = None if everywhere is None else str(everywhere)
    if mesh is None:
        return None
    layout = operators.decode_sharding("splash_attention", str(tuple(config.qkv_partition_spec)), mesh, 4)
    if layout is not None and any(entry is not None for entry in layout.spec[2:]):
        raise ValueError(
            f"splash_attention: qkv_partition_spec {config.qkv_partition_spec} shards the length or the head size; "
            "only the batch and the heads, the first two dimensions, can be sharded"
        )
    operators.decode_sharding("splash_attention", str(_ids_spec(config)), mesh, 2)
    return layout


def _name(options: splash_kernel.SplashAttentionOptions) -> str:
    default = _options(SplashAttentionConfig(), True, None)
    if (options.blocks, options.fused_backward, options.layouts) == (
        default.blocks,
        default.fused_backward,
        default.layouts,
    ):
        return "splash_attention"
    sizes = "_".join(str(size) for _, size in options.blocks)
    layouts = "".join(layout[0] for _, layout in options.layouts)
    return f"splash_attention_{sizes}_{layouts}{options.fused_backward:d}"


def _run(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str, ids: Maybe, causal: bool | None,
    soft_cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    read = SplashAttentionConfig.from_json(config)
    options = _options(read, causal, soft_cap)
    out, sums = operators.call(_name(options), splash_kernel.forward, q, k, v, ids, options, _layout(read))
    return out, sums


def _fake(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any) -> tuple[torch.Tensor, torch.Tensor]:
    sums = torch.promote_types(q.dtype, torch.float32)
    return q.new_empty((*q.shape[:3], v.shape[3])), q.new_empty(q.shape[:3], dtype=sums)


def _run_backward(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str, ids: Maybe,
    causal: bool | None, soft_cap: float | None, out: torch.Tensor, sums: torch.Tensor,
) -> list[torch.Tensor]:  # fmt: skip
    read = SplashAttentionConfig.from_json(config)
    options = _options(read, causal, soft_cap)
    arrays = grad, q, k, v, ids, out, sums
    return list(operators.call(f"{_name(options)}_backward", splash_kernel.backward, *arrays, options, _layout(read)))


_ARGUMENTS = (
    "Tensor q, Tensor k, Tensor v, str config, Tensor? decoder_segment_ids, bool? causal, float? attn_logits_soft_cap"
)
_backward_op = define_operator(
    f"splash_attention_backward(Tensor grad, {_ARGUMENTS}, Tensor out, Tensor sums) -> Tensor[]",
    _run_backward,
    lambda grad, q, k, v, *_: [torch.empty_like(t) for t in (q, k, v)],
)


def _keep(ctx: Any, inputs: Sequence[Any], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    q, k, v, ctx.config, ids, ctx.causal, ctx.soft_cap = inputs
    ctx.save_for_backward(q, k, v, ids, *output)


def _gradients(ctx: Any, grad: torch.Tensor, _: Maybe = None) -> tuple[Maybe, ...]:
    q, k, v, ids, out, sums = ctx.saved_tensors
    found = _backward_op(grad, q, k, v, ctx.config, ids, ctx.causal, ctx.soft_cap, out, sums)
    return *found, None, None, None, None


_forward_op = define_operator(
    f"splash_attention({_ARGUMENTS}) -> (Tensor, Tensor)", _run, _fake, gradient=(_keep, _gradients)
)


def splash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str, decoder_segment_ids: Maybe = None,
    causal: bool = True, attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute softmax(q @ k.mT) @ v; differentiable. The caller scales q.

    TPU: jax's Pallas kernel, for float32 and bfloat16 and lengths that are multiples of 128; otherwise plain XLA
    operations.

    Args:
      q, k, v: [batch, heads, length, size], of one floating dtype (under autocast, its dtype); the number of heads of k
        and v divides that of q.
      config: a SplashAttentionConfig as text, ``config.to_json()``.
      decoder_segment_ids: integers, [batch, length]; a position sees the positions of its segment.
      causal: a position sees no later position.
      attn_logits_soft_cap: soft cap of the scores: cap * tanh(score / cap).

    Returns:
      [batch, heads, length, size], in the dtype of q.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    q, k, v = operators.autocast(q, k, v)
    _check(q, k, v, decoder_segment_ids)
    out, _ = _forward_op(q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap)
    return out  # type: ignore[no-any-return]


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, ids: Maybe) -> None:
    what, together = "splash_attention", format_tensors(q, k, v)
    check_on_xla(what, q=q, k=k, v=v, decoder_segment_ids=ids)
    if not q.dim() == k.dim() == v.dim() == 4 or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        raise ValueError(f"{what}: q, k and v must be [batch, heads, length, size], got {together}")
    if q.shape[0] != k.shape[0] or q.shape[1] % max(k.shape[1], 1) or q.shape[2] != k.shape[2]:
        raise ValueError(
            f"{what}: q, k and v must have equal batch and length, and numbers of heads that divide q's, got {together}"
        )
    if not q.dtype == k.dtype == v.dtype or not q.dtype.is_floating_point:
        raise TypeError(f"{what}: q, k and v must be of one floating dtype, got {together}")
    if ids is not None and (ids.shape != (q.shape[0], q.shape[2]) or ids.dtype.is_floating_point):
        raise ValueError(
            f"{what}: decoder_segment_ids must be integers of shape {[q.shape[0], q.shape[2]]}, "
            f"got {format_tensors(ids)}"
        )


class SplashAttention(torch.autograd.Function):
    """splash_attention as an autograd Function; ``SplashAttention.apply`` takes its arguments in order."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str, decoder_segment_ids: Maybe = None,
        causal: bool = True, attn_logits_soft_cap: float | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """Return [batch, heads, length, size], in the dtype of q.

        Args:
          ctx: context of autograd.
          q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap: see splash_attention.
        """
        _check(q, k, v, decoder_segment_ids)
        inputs = q, k, v, config, decoder_segment_ids, causal, attn_logits_soft_cap
        outputs = _forward_op(*inputs)
        _keep(ctx, inputs, outputs)
        return outputs[0]  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        """Return the gradients of q, k and v.

        Args:
          ctx: context of autograd.
          grads: the gradient of the output.
        """
        return _gradients(ctx, grads[0])


def sa_custom_forward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str, decoder_segment_ids: Maybe, causal: bool | None,
    attn_logits_soft_cap: float | None,
) -> tuple[torch.Tensor, None, None]:  # fmt: skip
    """Return (result of splash_attention without a gradient, None, None), as upstream's operator does."""
    with torch.no_grad():
        out = splash_attention(q, k, v, config, decoder_segment_ids, bool(causal), attn_logits_soft_cap)
    return out, None, None


def sa_custom_forward_fake(q: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, None, None]:
    """Fake implementation of sa_custom_forward for tracers."""
    return torch.empty_like(q), None, None


def sa_custom_backward(
    grad_output: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, config: str,
    decoder_segment_ids: Maybe, causal: bool | None, attn_logits_soft_cap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Return the gradients of q, k and v from the inputs; recomputes the forward pass."""
    with torch.no_grad():
        _check(q, k, v, decoder_segment_ids)
        options = config, decoder_segment_ids, bool(causal), attn_logits_soft_cap
        dq, dk, dv = _backward_op(grad_output, q, k, v, *options, *_forward_op(q, k, v, *options))
    return dq, dk, dv


def sa_custom_backward_fake(
    grad_output: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fake implementation of sa_custom_backward for tracers."""
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def splash_attention_jax_wrapper(
    query: jax.Array, key: jax.Array, value: jax.Array, decoder_segment_ids: jax.Array | None, causal: bool,
    config: SplashAttentionConfig, attn_logits_soft_cap: float | None,
) -> jax.Array:  # fmt: skip
    """Compute splash_attention of jax arrays; differentiable by jax.

    Args:
      query, key, value, decoder_segment_ids, causal, config, attn_logits_soft_cap: see splash_attention; jax arrays.
    """
    options = _options(config, causal, attn_logits_soft_cap)
    found: jax.Array = splash_kernel.attention(query, key, value, decoder_segment_ids, options, _layout(config))
    return found


def tpu_splash_attention_jax_call_wrapper(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, config: SplashAttentionConfig | str,
    decoder_segment_ids: Maybe, causal: bool, attn_logits_soft_cap: float | None = None, is_forward: bool = True,
    grad_output: Maybe = None,
) -> tuple[torch.Tensor, Maybe, Maybe]:  # fmt: skip
    """Return (result, None, None), or with ``is_forward=False`` the gradients of q, k and v for ``grad_output``."""
    written = config if isinstance(config, str) else config.to_json()
    arguments = query, key, value, written, decoder_segment_ids, causal, attn_logits_soft_cap
    if is_forward:
        return sa_custom_forward(*arguments)
    if grad_output is None:
        raise ValueError("tpu_splash_attention_jax_call_wrapper: is_forward=False requires grad_output")
    return sa_custom_backward(grad_output, *arguments)
