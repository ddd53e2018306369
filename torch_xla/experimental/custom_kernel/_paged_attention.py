"""Paged attention: keys and values in pages, as serving systems store them. There is no gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine.platform_kernels import paged_attention as paged_kernel
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import check_on_xla, define_operator, format_tensors


def paged_attention(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, lengths: torch.Tensor, page_indices: torch.Tensor,
    pages_per_compute_block: int, megacore_mode: str | None = None, attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of one query per sequence over all keys of the sequence.

    TPU: jax's Pallas kernel, for sizes that are multiples of 128; GPU: jax's Triton kernel, if its tiles fit.

    Args:
      q: [batch, heads, size], scaled by the caller.
      k_pages, v_pages: [kv heads, pages, page length, size]; the number of kv heads divides the number of heads of q.
      lengths: [batch], the number of keys of each sequence; the result of a sequence without keys is zero.
      page_indices: [batch, pages of a sequence], the pages of its keys.
      pages_per_compute_block: number of pages per block of the TPU and GPU kernels; divides the pages of a sequence.
      megacore_mode: "kv_head" or "batch": the dimension that two cores of a TPU chip share.
      attn_logits_soft_cap: soft cap of the scores.

    Returns:
      [batch, heads, size], in the dtype of q.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    return _paged_op(  # type: ignore[no-any-return]
        q, k_pages, v_pages, lengths, page_indices, pages_per_compute_block, megacore_mode, attn_logits_soft_cap
    )


def _run_paged(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, lengths: torch.Tensor, page_indices: torch.Tensor,
    pages_per_compute_block: int, megacore_mode: str | None = None, attn_logits_soft_cap: float | None = None,
) -> Any:  # fmt: skip
    _check_pages("paged_attention", q, k_pages, v_pages, lengths, page_indices, 3, pages_per_compute_block)
    if megacore_mode not in (None, "kv_head", "batch"):
        raise ValueError(f"paged_attention: megacore_mode must be None, 'kv_head' or 'batch', got {megacore_mode!r}")
    shared = {"kv_head": k_pages.shape[0], "batch": q.shape[0], None: 2}[megacore_mode]
    if shared % 2:
        raise ValueError(f"paged_attention: megacore_mode={megacore_mode!r} requires an even number, got {shared}")
    name = f"paged_attention_{pages_per_compute_block}_{megacore_mode}"
    arrays = q, k_pages, v_pages, lengths, page_indices
    options = pages_per_compute_block, megacore_mode, attn_logits_soft_cap
    return operators.call(name, paged_kernel.paged_attention, *arrays, *options)


def multi_queries_paged_attention(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, lengths: torch.Tensor, page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor, num_kv_pages_per_compute_block: int, num_queries_per_compute_block: int,
    use_kernel: bool = True, attn_logits_soft_cap: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of several queries per sequence, its last ones; otherwise like paged_attention.

    The first ``effective_q_lens`` queries of each sequence are valid, and each sees the keys up to its position; the
    results of the others are zero. jax has no kernel: all platforms use the same operations, and block sizes and
    ``use_kernel`` have no effect.

    Args:
      q: [batch, length, heads, size], scaled by the caller.
      k_pages, v_pages, lengths, page_indices, attn_logits_soft_cap: as for paged_attention.
      effective_q_lens: [batch], integers.
      num_kv_pages_per_compute_block, num_queries_per_compute_block: must divide the pages and the queries.
      use_kernel: accepted for compatibility.

    Returns:
      [batch, length, heads, size], in the dtype of q.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    return _multi_op(  # type: ignore[no-any-return]
        q, k_pages, v_pages, lengths, page_indices, effective_q_lens, num_kv_pages_per_compute_block,
        num_queries_per_compute_block, use_kernel, attn_logits_soft_cap,
    )  # fmt: skip


def _run_multi(
    q: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, lengths: torch.Tensor, page_indices: torch.Tensor,
    effective_q_lens: torch.Tensor, num_kv_pages_per_compute_block: int, num_queries_per_compute_block: int,
    use_kernel: bool = True, attn_logits_soft_cap: float | None = None,
) -> Any:  # fmt: skip
    what = "multi_queries_paged_attention"
    _check_pages(what, q, k_pages, v_pages, lengths, page_indices, 4, num_kv_pages_per_compute_block)
    _check_integers(what, (q.shape[0],), effective_q_lens=effective_q_lens)
    if num_queries_per_compute_block < 1 or q.shape[1] % num_queries_per_compute_block:
        raise ValueError(
            f"{what}: num_queries_per_compute_block must divide the {q.shape[1]} queries, got "
            f"{num_queries_per_compute_block}"
        )
    arrays = q, k_pages, v_pages, lengths, page_indices, effective_q_lens
    return operators.call(what, paged_kernel.multi_queries_paged_attention, *arrays, attn_logits_soft_cap)


def ragged_paged_attention(
    q: torch.Tensor, kv_pages: torch.Tensor, kv_lens: torch.Tensor, page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor, num_seqs: torch.Tensor, *, sm_scale: float = 1.0, sliding_window: int | None = None,
    soft_cap: float | None = None, mask_value: float | None = None, k_scale: float | None = None,
    v_scale: float | None = None, use_kernel: bool = True, num_kv_pages_per_block: int | None = None,
    num_queries_per_block: int | None = None, vmem_limit_bytes: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Compute attention of the queries of many sequences, which are concatenated along the first dimension.

    TPU: jax's Pallas kernel, for sizes that are multiples of 128 and numbers of heads that fill its tiles.

    Args:
      q: [tokens, heads, size].
      kv_pages: [pages, page length, 2 * kv heads, size]: the key and the value of each head alternate.
      kv_lens: [sequences], the number of keys of each sequence, of which its queries are the last.
      page_indices: [sequences, pages of a sequence].
      cu_q_lens: [sequences + 1]: the queries of sequence i are cu_q_lens[i] to cu_q_lens[i + 1].
      num_seqs: [1], the number of valid sequences; results of tokens outside these are zero.
      sm_scale: factor of the scores.
      sliding_window: number of keys that a query sees: its position and the ones before it.
      soft_cap: soft cap of the scores.
      mask_value: added to scores of keys that a query does not see; default: -2.4e38.
      k_scale, v_scale: factors of keys and values, whose storage dtype may differ from q's dtype.
      use_kernel: False uses plain operations on TPUs, too.
      num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes: options of the TPU kernel.

    Returns:
      [tokens, heads, size], in the dtype of q.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    return _ragged_op(  # type: ignore[no-any-return]
        q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, sm_scale, sliding_window, soft_cap, mask_value,
        k_scale, v_scale, use_kernel, num_kv_pages_per_block, num_queries_per_block, vmem_limit_bytes,
    )  # fmt: skip


def _run_ragged(
    q: torch.Tensor, kv_pages: torch.Tensor, kv_lens: torch.Tensor, page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor, num_seqs: torch.Tensor, *options: Any,
) -> Any:  # fmt: skip
    found = paged_kernel.RaggedOptions(*options)
    _check_ragged(q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs, found)
    blocks = f"_{found.pages_per_block}_{found.queries_per_block}_{found.vmem_limit}_{found.use_kernel}"
    arrays = q, kv_pages, kv_lens, page_indices, cu_q_lens, num_seqs
    return operators.call(f"ragged_paged_attention{blocks}", paged_kernel.ragged_paged_attention, *arrays, found)


def _check_ragged(
    q: torch.Tensor, kv_pages: torch.Tensor, kv_lens: torch.Tensor, page_indices: torch.Tensor,
    cu_q_lens: torch.Tensor, num_seqs: torch.Tensor, options: paged_kernel.RaggedOptions,
) -> None:  # fmt: skip
    what = "ragged_paged_attention"
    check_on_xla(what, q=q, kv_pages=kv_pages)
    if q.dim() != 3 or kv_pages.dim() != 4 or q.shape[2] != kv_pages.shape[3]:
        raise ValueError(
            f"{what}: q must be [tokens, heads, size], and kv_pages [pages, length, 2 * heads, size], got "
            f"{format_tensors(q, kv_pages)}"
        )
    heads, both = q.shape[1], kv_pages.shape[2]
    if both % 2 or both == 0 or heads % (both // 2):
        raise ValueError(f"{what}: the {heads} heads of q must be a multiple of the {both} heads of keys and values")
    if page_indices.dim() != 2:
        raise ValueError(f"{what}: page_indices must be [sequences, pages], got {format_tensors(page_indices)}")
    count, pages = page_indices.shape
    _check_integers(what, (count,), kv_lens=kv_lens)
    _check_integers(what, (count, pages), page_indices=page_indices)
    _check_integers(what, (count + 1,), cu_q_lens=cu_q_lens)
    _check_integers(what, (1,), num_seqs=num_seqs)
    limits = {
        "sliding_window": options.window,
        "num_kv_pages_per_block": options.pages_per_block,
        "num_queries_per_block": options.queries_per_block,
        "vmem_limit_bytes": options.vmem_limit,
    }
    for name, value in limits.items():
        if value is not None and value <= 0:
            raise ValueError(f"{what}: {name} must be positive, got {value}")
    if options.pages_per_block is not None and options.pages_per_block > pages:
        raise ValueError(
            f"{what}: num_kv_pages_per_block={options.pages_per_block} exceeds the number of pages, {pages}"
        )
    if options.soft_cap == 0:
        raise ValueError(f"{what}: soft_cap must not be 0")


def _check_pages(
    what: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: torch.Tensor, indices: torch.Tensor,
    rank: int, block: int,
) -> None:  # fmt: skip
    check_on_xla(what, q=q, k_pages=k, v_pages=v)
    if q.dim() != rank or k.dim() != 4 or k.shape != v.shape or q.shape[-1] != k.shape[-1]:
        wanted = "[batch, heads, size]" if rank == 3 else "[batch, length, heads, size]"
        raise ValueError(
            f"{what}: q must be {wanted}, k_pages and v_pages [heads, pages, length, size], "
            f"got {format_tensors(q, k, v)}"
        )
    if q.shape[-2] % max(k.shape[0], 1):
        raise ValueError(f"{what}: the {q.shape[-2]} heads of q must be a multiple of the {k.shape[0]} heads of keys")
    if indices.dim() != 2:
        raise ValueError(f"{what}: page_indices must be [batch, pages], got {format_tensors(indices)}")
    _check_integers(what, (q.shape[0],), lengths=lengths)
    _check_integers(what, (q.shape[0], indices.shape[1]), page_indices=indices)
    if block < 1 or indices.shape[1] % block:
        raise ValueError(f"{what}: a block of {block} pages does not divide the {indices.shape[1]} pages of a sequence")


def _check_integers(what: str, shape: Sequence[int], **tensors: torch.Tensor) -> None:
    check_on_xla(what, **tensors)
    for name, tensor in tensors.items():
        if tensor.shape != torch.Size(shape) or tensor.dtype not in (torch.int32, torch.int64):
            raise ValueError(f"{what}: {name} must be integers of shape {list(shape)}, got {format_tensors(tensor)}")


def _fake_like_query(q: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    return torch.empty_like(q)


_PAGES = "Tensor q, Tensor k_pages, Tensor v_pages, Tensor lengths, Tensor page_indices"
_paged_op = define_operator(
    f"paged_attention({_PAGES}, int pages_per_compute_block, str? megacore_mode=None, float? attn_logits_soft_cap=None)"
    " -> Tensor",
    _run_paged,
    _fake_like_query,
    "xla",
)
_multi_op = define_operator(
    f"multi_queries_paged_attention({_PAGES}, Tensor effective_q_lens, int num_kv_pages_per_compute_block, "
    "int num_queries_per_compute_block, bool use_kernel, float? attn_logits_soft_cap=None) -> Tensor",
    _run_multi,
    _fake_like_query,
    "xla",
)
_ragged_op = define_operator(
    "ragged_paged_attention(Tensor q, Tensor kv_pages, Tensor kv_lens, Tensor page_indices, Tensor cu_q_lens, "
    "Tensor num_seqs, float sm_scale=1, int? sliding_window=None, float? soft_cap=None, float? mask_value=None, "
    "float? k_scale=None, float? v_scale=None, bool use_kernel=True, int? num_kv_pages_per_block=None, "
    "int? num_queries_per_block=None, int? vmem_limit_bytes=None) -> Tensor",
    _run_ragged,
    _fake_like_query,
    "xla",
)
