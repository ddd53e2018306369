"""Attention under the name that diffusers imports."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool = False,
    q_segment_ids: torch.Tensor | None = None,
    kv_segment_ids: torch.Tensor | None = None,
    sm_scale: float = 1.0,
    *,
    ab: torch.Tensor | None = None,
    partition_spec: object = None,
    mesh: object = None,
) -> torch.Tensor:
    """Attention as torch's ``scaled_dot_product_attention`` computes it; no kernel of its own.

    Args:
      q, k, v: [batch, heads, length, size], of one floating dtype; the result has the shape and dtype of q.
      causal: no position sees a later one.
      q_segment_ids, kv_segment_ids: [batch, length]; a position sees those of its own segment. Both or none.
      sm_scale: factor of the scores. Unlike torch's, the default is 1.
      ab: added to the scores, of a shape that expands to [batch, heads, length of q, length of k].
      partition_spec, mesh: None; NotImplementedError otherwise, as SPMD does not exist yet.
    """
    if partition_spec is not None or mesh is not None:
        raise NotImplementedError("flash_attention: partition_spec and mesh need SPMD, which does not exist here yet")
    if (q_segment_ids is None) != (kv_segment_ids is None):
        raise ValueError("flash_attention: q_segment_ids and kv_segment_ids are given together or not at all")
    if q_segment_ids is None and ab is None:
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale)
    bias = torch.zeros((), dtype=q.dtype, device=q.device) if ab is None else ab.to(q.dtype)
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool, device=q.device)
    if causal:
        seen = seen.tril()
    if q_segment_ids is not None and kv_segment_ids is not None:
        seen = seen & (q_segment_ids[:, None, :, None] == kv_segment_ids[:, None, None, :])
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.masked_fill(~seen, -torch.inf), scale=sm_scale)
