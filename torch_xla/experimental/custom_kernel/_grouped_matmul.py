"""Grouped matrix multiplication: each group of rows times the matrix of its group; differentiable."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla._engine.platform_kernels import grouped_matmul
from torch_xla.experimental.custom_kernel import _torch_ops as operators
from torch_xla.experimental.custom_kernel._torch_ops import check_on_xla, define_operator, format_tensors

Maybe = torch.Tensor | None
Tiling = tuple[int, int, int]


def gmm(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Tiling | None = None,
    group_offset: Maybe = None, transpose_rhs: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Multiply the rows of each group by the matrix of the group; differentiable.

    TPU: jax's megablox kernel, for float32 and bfloat16. GPU: ``jax.lax.ragged_dot``. CPU: a loop over the groups.

    Args:
      lhs: [m, k]; the rows of the first group come first, then those of the second.
      rhs: [groups, k, n], or [groups, n, k] with ``transpose_rhs``.
      group_sizes: [groups], integers: the number of rows of each group. Rows beyond their sum are zero and have no
        gradient.
      tiling: tile sizes of the TPU kernel, for m, k and n.
      group_offset: an integer, [1] or []: ``rhs`` has the matrices of the groups from this one on; the rows of other
        groups are zero.

    Returns:
      [m, n], in the dtype of lhs.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    _check("gmm", lhs, rhs, group_sizes, group_offset)
    return _gmm_op(lhs, rhs, group_sizes, tiling, group_offset, transpose_rhs)  # type: ignore[no-any-return]


def tgmm(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Tiling = grouped_matmul.TILING,
    group_offset: Maybe = None, num_actual_groups: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """Multiply, for each group, its columns of ``lhs`` by its rows of ``rhs``; used by gmm's gradient, has no gradient.

    Args:
      lhs: [k, m].
      rhs: [m, n].
      group_sizes, tiling, group_offset: as for gmm.
      num_actual_groups: number of groups from ``group_offset`` on; default: all.

    Returns:
      [groups, k, n], in the dtype of lhs.

    Raises:
      ValueError, TypeError: shapes or dtypes do not match.
    """
    _check("tgmm", lhs, rhs, group_sizes, group_offset)
    count = group_sizes.shape[0] if num_actual_groups is None else num_actual_groups
    if not 0 <= count <= group_sizes.shape[0]:
        raise ValueError(f"tgmm: num_actual_groups={count} exceeds the {group_sizes.shape[0]} groups")
    return _tgmm_op(lhs, rhs, group_sizes, tiling, group_offset, count)  # type: ignore[no-any-return]


def gmm_backward(
    grad: torch.Tensor,
    lhs: torch.Tensor,
    rhs: torch.Tensor,
    group_sizes: torch.Tensor,
    tiling: Tiling = grouped_matmul.TILING,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of gmm's ``lhs`` and ``rhs``.

    Args:
      grad: gradient of the output, [m, n].
      lhs, rhs, group_sizes, tiling: see gmm.
    """
    return gmm(grad, rhs, group_sizes, tiling, transpose_rhs=True), tgmm(lhs.t(), grad, group_sizes, tiling)


class GMM(torch.autograd.Function):
    """gmm as an autograd Function, under upstream's name: ``GMM.apply(lhs, rhs, group_sizes, tiling)``."""

    @staticmethod
    def forward(
        ctx: Any,
        lhs: torch.Tensor,
        rhs: torch.Tensor,
        group_sizes: torch.Tensor,
        tiling: Tiling = grouped_matmul.TILING,
    ) -> torch.Tensor:
        """Return [m, n].

        Args:
          ctx: context of autograd.
          lhs, rhs, group_sizes, tiling: see gmm.
        """
        ctx.save_for_backward(lhs, rhs, group_sizes)
        ctx.tiling = tiling
        return gmm(lhs, rhs, group_sizes, tiling)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Maybe, ...]:
        """Return the gradients of lhs and rhs.

        Args:
          ctx: context of autograd.
          grads: the gradient of the output.
        """
        lhs, rhs, sizes = ctx.saved_tensors
        return *gmm_backward(grads[0], lhs, rhs, sizes, ctx.tiling), None, None


def _check(what: str, lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, offset: Maybe) -> None:
    check_on_xla(what, lhs=lhs, rhs=rhs, group_sizes=group_sizes, group_offset=offset)
    rank = 3 if what == "gmm" else 2
    if lhs.dim() != 2 or rhs.dim() != rank:
        wanted = "[m, k] and rhs [groups, k, n]" if rank == 3 else "[k, m] and rhs [m, n]"
        raise ValueError(f"{what}: lhs must be {wanted}, got {format_tensors(lhs, rhs)}")
    if not lhs.dtype.is_floating_point or not rhs.dtype.is_floating_point:
        raise TypeError(f"{what}: lhs and rhs must be of floating dtypes, got {format_tensors(lhs, rhs)}")
    if group_sizes.dim() != 1 or group_sizes.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"{what}: group_sizes must be integers of shape [groups], got {format_tensors(group_sizes)}")
    if offset is not None and (offset.numel() != 1 or offset.dtype not in (torch.int32, torch.int64)):
        raise ValueError(f"{what}: group_offset must be one integer, got {format_tensors(offset)}")
    if what == "tgmm" and lhs.shape[1] != rhs.shape[0]:
        raise ValueError(
            f"tgmm: lhs has {lhs.shape[1]} columns, but rhs has {rhs.shape[0]} rows: {format_tensors(lhs, rhs)}"
        )
    if what == "gmm" and not 0 < rhs.shape[0] <= group_sizes.shape[0]:
        raise ValueError(
            f"gmm: rhs has {rhs.shape[0]} matrices for {group_sizes.shape[0]} groups: {format_tensors(rhs)}"
        )
    if what == "gmm" and offset is None and rhs.shape[0] != group_sizes.shape[0]:
        raise ValueError(
            f"gmm: rhs has {rhs.shape[0]} matrices for {group_sizes.shape[0]} groups; pass group_offset for a subset"
        )


def _validate_tiling(what: str, tiling: Sequence[int] | None) -> Tiling:
    m, k, n = found = (
        tuple(grouped_matmul.TILING if tiling is None else tiling) if tiling is None or len(tiling) == 3 else (0,) * 3
    )
    if any(size < 1 or size % 128 for size in found):
        raise ValueError(f"{what}: tiling must be three multiples of 128, of m, k and n, got {tiling}")
    return m, k, n


def _run(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Sequence[int] | None = None,
    group_offset: Maybe = None, transpose_rhs: bool = False,
) -> Any:  # fmt: skip
    _check("gmm", lhs, rhs, group_sizes, group_offset)
    if lhs.shape[1] != rhs.shape[2 if transpose_rhs else 1]:
        raise ValueError(
            f"gmm: lhs has {lhs.shape[1]} columns, but the matrices of rhs have "
            f"{rhs.shape[2 if transpose_rhs else 1]} rows: {format_tensors(lhs, rhs)}, transpose_rhs={transpose_rhs}"
        )
    tiles = _validate_tiling("gmm", tiling)
    name = "_".join(map(str, ("gmm", *tiles)))
    return operators.call(name, grouped_matmul.gmm, lhs, rhs, group_sizes, group_offset, tiles, transpose_rhs)


def _fake(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Sequence[int] | None = None,
    group_offset: Maybe = None, transpose_rhs: bool = False,
) -> torch.Tensor:  # fmt: skip
    return lhs.new_empty((lhs.shape[0], rhs.shape[1 if transpose_rhs else 2]))


def _run_t(
    lhs: torch.Tensor, rhs: torch.Tensor, group_sizes: torch.Tensor, tiling: Sequence[int], offset: Maybe, count: int
) -> Any:
    tiles = _validate_tiling("tgmm", tiling)
    return operators.call(
        "_".join(map(str, ("tgmm", *tiles))), grouped_matmul.tgmm, lhs, rhs, group_sizes, offset, tiles, count
    )


_tgmm_op = define_operator(
    "tgmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[] tiling, Tensor? group_offset, int count) -> Tensor",
    _run_t,
    lambda lhs, rhs, sizes, tiling, offset, count: lhs.new_empty((count, lhs.shape[0], rhs.shape[1])),
)


def _setup_context(ctx: Any, inputs: Sequence[Any], output: torch.Tensor) -> None:
    lhs, rhs, sizes, ctx.tiling, offset, ctx.transposed = inputs
    ctx.save_for_backward(lhs, rhs, sizes, offset)


def _gradients(ctx: Any, grad: torch.Tensor) -> tuple[Maybe, ...]:
    lhs, rhs, sizes, offset = ctx.saved_tensors
    of_lhs, of_rhs = None, None
    tiling = _validate_tiling("gmm", ctx.tiling)
    if ctx.needs_input_grad[0]:
        of_lhs = _gmm_op(grad, rhs, sizes, ctx.tiling, offset, not ctx.transposed).to(lhs.dtype)
    if ctx.needs_input_grad[1]:
        pair = (grad.t(), lhs) if ctx.transposed else (lhs.t(), grad)
        of_rhs = _tgmm_op(*pair, sizes, tiling, offset, rhs.shape[0]).to(rhs.dtype)
    return of_lhs, of_rhs, None, None, None, None


_gmm_op = define_operator(
    "gmm(Tensor lhs, Tensor rhs, Tensor group_sizes, int[]? tiling=None, Tensor? group_offset=None, "
    "bool transpose_rhs=False) -> Tensor",
    _run,
    _fake,
    "xla",
    (_setup_context, _gradients),
)
