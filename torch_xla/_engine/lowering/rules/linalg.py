"""Lowering rules of matrix decompositions, determinants and linear solvers.

``info`` outputs follow LAPACK: 0 for success, else the position at which the factorization failed. The LU decomposition
returned with a determinant is that of the transposed matrix if the matrix is real: torch reads a contiguous real matrix
as column-major, and its gradient formulas rely on this for every tensor that is contiguous.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower, register

Arrays = tuple[jax.Array, ...]


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(x.mT)


@lower("aten::linalg_qr", ctx=True)
def _qr(ctx: LoweringRuleContext, a: jax.Array, mode: str = "reduced") -> Arrays:
    if mode != "r":
        return tuple(lax.linalg.qr(a, full_matrices=mode == "complete"))
    (_, r) = lax.linalg.qr(a, full_matrices=False)
    return jnp.zeros(ctx.shape, a.dtype), r


def svd(a: jax.Array, full_matrices: bool) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return left singular vectors, singular values, and the adjoint of the right singular vectors.

    On TPUs float32 matrices are decomposed in complex64, where the imaginary parts remain 0: with 64-bit types enabled,
    libtpu (of jax 0.10.2) aborts the process for float32 ("Check failed: buffer != nullptr"). The float64
    decomposition takes 16 s.
    """

    def usual(a: jax.Array) -> list[jax.Array]:
        return list(lax.linalg.svd(a, full_matrices=full_matrices))

    def as_complex(a: jax.Array) -> list[jax.Array]:
        return [x.real for x in usual(lax.complex(a, jnp.zeros_like(a)))]

    u, values, v = lax.platform_dependent(a, tpu=as_complex, default=usual) if a.dtype == np.float32 else usual(a)
    return u, values, v


@lower("aten::_linalg_svd", ctx=True)
def _svd(
    ctx: LoweringRuleContext,
    a: jax.Array,
    full_matrices: bool = False,
    compute_uv: bool = True,
    driver: str | None = None,
) -> Arrays:
    if compute_uv:
        return svd(a, full_matrices)
    s = lax.linalg.svd(a, compute_uv=False)
    return jnp.zeros(ctx.out_specs[0][0], a.dtype), s, jnp.zeros(ctx.out_specs[2][0], a.dtype)


@lower("aten::_linalg_eigh", ctx=True)
def _eigh(ctx: LoweringRuleContext, a: jax.Array, uplo: str = "L", compute_v: bool = True) -> Arrays:
    vectors, values = lax.linalg.eigh(a, lower=uplo.upper() == "L", symmetrize_input=False)
    return values, vectors if compute_v else jnp.zeros(ctx.out_specs[1][0], a.dtype)


def _lu(a: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return LU, LAPACK's 1-based pivots, and info: the 1-based position of the first 0 on U's diagonal."""
    lu, pivots, _ = lax.linalg.lu(a)
    singular = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if not singular.shape[-1]:
        return lu, pivots + 1, jnp.zeros(a.shape[:-2], jnp.int32)
    place = jnp.argmax(singular, -1).astype(jnp.int32) + 1
    return lu, pivots + 1, jnp.where(jnp.any(singular, -1), place, 0).astype(jnp.int32)


@lower("aten::linalg_lu_factor_ex")
def _lu_factor(a: jax.Array, pivot: bool = True, check_errors: bool = False) -> Arrays:
    if not pivot:
        raise NotImplementedError("torch.linalg.lu_factor: pivot=False is not supported on XLA devices")
    return _lu(a)


def _permutation(pivots: jax.Array, rows: int) -> jax.Array:
    """Return the permutation ``p`` with ``(P^T b)[i] = b[p[i]]`` for torch's pivots."""
    return lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)


def _triangles(lu: jax.Array) -> tuple[jax.Array, jax.Array]:
    rank = min(lu.shape[-2:])
    eye = jnp.eye(lu.shape[-2], rank, dtype=lu.dtype)
    return jnp.tril(lu[..., :, :rank], -1) + eye, jnp.triu(lu[..., :rank, :])


def _permutation_matrix(pivots: jax.Array, rows: int, dtype: object) -> jax.Array:
    return jax.nn.one_hot(_permutation(pivots, rows), rows, dtype=dtype).mT


@lower("aten::lu_unpack", ctx=True)
def _lu_unpack(
    ctx: LoweringRuleContext, lu: jax.Array, pivots: jax.Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> Arrays:
    p, lower_, upper = (jnp.zeros(shape, lu.dtype) for shape, _ in ctx.out_specs)
    if unpack_data:
        lower_, upper = _triangles(lu)
    return _permutation_matrix(pivots, lu.shape[-2], lu.dtype) if unpack_pivots else p, lower_, upper


@lower("aten::linalg_lu", ctx=True)
def _linalg_lu(ctx: LoweringRuleContext, a: jax.Array, pivot: bool = True) -> Arrays:
    lu, pivots, _ = _lu_factor(a, pivot)
    return _lu_unpack(ctx, lu, pivots)


def _triangular(
    a: jax.Array, b: jax.Array, *, left: bool = True, upper: bool, transpose: bool = False, conjugate: bool = False,
    unit: bool = False,
) -> jax.Array:  # fmt: skip
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    a, b = (jnp.broadcast_to(x, (*batch, *x.shape[-2:])) for x in (a, b))
    return lax.linalg.triangular_solve(
        a, b, left_side=left, lower=not upper, transpose_a=transpose, conjugate_a=conjugate, unit_diagonal=unit
    )


def _solve_lu(lu: jax.Array, pivots: jax.Array, b: jax.Array, *, left: bool, adjoint: bool) -> jax.Array:
    """Solve with ``P L U`` (or its adjoint) on the left or the right of the unknown."""
    if not left:
        return _adjoint(_solve_lu(lu, pivots, _adjoint(b), left=True, adjoint=not adjoint))
    batch = jnp.broadcast_shapes(lu.shape[:-2], b.shape[:-2])
    b = jnp.broadcast_to(b, (*batch, *b.shape[-2:]))
    order = jnp.broadcast_to(_permutation(pivots, lu.shape[-1]), (*batch, lu.shape[-1]))
    if not adjoint:
        b = jnp.take_along_axis(b, order[..., None], -2)
        return _triangular(lu, _triangular(lu, b, upper=False, unit=True), upper=True)
    y = _triangular(lu, b, upper=True, transpose=True, conjugate=True)
    y = _triangular(lu, y, upper=False, transpose=True, conjugate=True, unit=True)
    return jnp.take_along_axis(y, jnp.argsort(order, -1)[..., None], -2)


@lower("aten::linalg_lu_solve")
def _lu_solve(lu: jax.Array, pivots: jax.Array, b: jax.Array, left: bool = True, adjoint: bool = False) -> jax.Array:
    return _solve_lu(lu, pivots, b, left=left, adjoint=adjoint)


def _determinant_lu(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the LU and pivots that the gradient formulas of determinants expect."""
    lu, pivots, _ = _lu(a if jnp.iscomplexobj(a) else a.mT)
    return lu, pivots


@lower("aten::_linalg_solve_ex", ctx=True)
def _solve_ex(
    ctx: LoweringRuleContext, a: jax.Array, b: jax.Array, left: bool = True, check_errors: bool = False
) -> Arrays:
    lu, pivots, info = _lu(a)
    vector = b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1])
    right = b[..., None] if vector else b
    x = _solve_lu(lu, pivots, right, left=left, adjoint=False)
    return x.squeeze(-1) if vector else x, lu, pivots, info


@lower("aten::linalg_inv_ex")
def _inv_ex(a: jax.Array, check_errors: bool = False) -> Arrays:
    lu, pivots, info = _lu(a)
    eye = jnp.broadcast_to(jnp.eye(a.shape[-1], dtype=a.dtype), a.shape)
    return _solve_lu(lu, pivots, eye, left=True, adjoint=False), info


def _sign_of_pivots(pivots: jax.Array) -> jax.Array:
    moved = pivots != jnp.arange(1, pivots.shape[-1] + 1, dtype=pivots.dtype)
    return 1 - 2 * (jnp.sum(moved, -1) % 2)


@lower("aten::_linalg_det")
def _det(a: jax.Array) -> Arrays:
    lu, pivots = _determinant_lu(a)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _sign_of_pivots(pivots).astype(a.dtype), lu, pivots


@lower("aten::_linalg_slogdet")
def _slogdet(a: jax.Array) -> Arrays:
    lu, pivots = _determinant_lu(a)
    diagonal = jnp.diagonal(lu, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _sign_of_pivots(pivots).astype(a.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), lu, pivots


@lower("aten::linalg_solve_triangular")
def _solve_triangular(
    a: jax.Array, b: jax.Array, upper: bool, left: bool = True, unitriangular: bool = False
) -> jax.Array:
    return _triangular(a, b, left=left, upper=upper, unit=unitriangular)


@lower("aten::triangular_solve", ctx=True)
def _triangular_solve(
    ctx: LoweringRuleContext,
    b: jax.Array,
    a: jax.Array,
    upper: bool = True,
    transpose: bool = False,
    unitriangular: bool = False,
) -> Arrays:
    x = _triangular(a, b, upper=upper, transpose=transpose, unit=unitriangular)
    return x, jnp.broadcast_to(a, ctx.out_specs[1][0])


def _factor(a: jax.Array, upper: bool) -> jax.Array:
    factor = lax.linalg.cholesky(_adjoint(a) if upper else a, symmetrize_input=False)
    return _adjoint(factor) if upper else factor


def _first_bad_minor(a: jax.Array) -> jax.Array:
    """Return the 1-based order of the first leading minor that is not positive, or 0; reads the lower triangle."""
    n = a.shape[-1]
    a = jnp.tril(a) + _adjoint(jnp.tril(a, -1))

    def eliminate(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        a, bad = state
        pivot = jnp.real(a[..., i, i])
        bad = jnp.where((bad == 0) & ~(pivot > 0), i + 1, bad)
        column, row = a[..., :, i, None], a[..., i, None, :]
        return a - column * row / pivot[..., None, None].astype(a.dtype), bad

    return lax.fori_loop(0, n, eliminate, (a, jnp.zeros(a.shape[:-2], jnp.int32)))[1]


@lower("aten::linalg_cholesky_ex")
def _cholesky_ex(a: jax.Array, upper: bool = False, check_errors: bool = False) -> Arrays:
    if not a.shape[-1]:
        return a, jnp.zeros(a.shape[:-2], jnp.int32)
    factor = _factor(a, upper)
    failed = jnp.any(jnp.isnan(factor))
    # search only if the factorization failed
    place = lambda a: _first_bad_minor(_adjoint(a) if upper else a).astype(jnp.int32)
    info = lax.cond(failed, place, lambda a: jnp.zeros(a.shape[:-2], jnp.int32), a)
    return factor, info


register("aten::cholesky", lambda a, upper=False: _factor(a, upper))


@lower("aten::cholesky_solve")
def _cholesky_solve(b: jax.Array, factor: jax.Array, upper: bool = False) -> jax.Array:
    first = _triangular(factor, b, upper=upper, transpose=upper, conjugate=upper)
    return _triangular(factor, first, upper=upper, transpose=not upper, conjugate=not upper)


@lower("aten::cholesky_inverse")
def _cholesky_inverse(factor: jax.Array, upper: bool = False) -> jax.Array:
    return _cholesky_solve(jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape), factor, upper)


@lower("aten::linalg_cross")
def _cross(a: jax.Array, b: jax.Array, dim: int = -1) -> jax.Array:
    a, b = jnp.broadcast_arrays(a, b)
    return jnp.roll(a, -1, dim) * jnp.roll(b, -2, dim) - jnp.roll(a, -2, dim) * jnp.roll(b, -1, dim)


@lower("aten::_trilinear")
def _trilinear(
    a: jax.Array, b: jax.Array, c: jax.Array, expand1: list[int], expand2: list[int], expand3: list[int],
    sumdim: list[int], unroll_dim: int = 1,
) -> jax.Array:  # fmt: skip
    widened = (jnp.expand_dims(x, tuple(dims)) for x, dims in zip((a, b, c), (expand1, expand2, expand3), strict=True))
    first, second, third = widened
    return jnp.sum(first * second * third, tuple(sumdim))


@lower("aten::linalg_matrix_exp")
def _matrix_exp(a: jax.Array) -> jax.Array:
    return convert(jax.scipy.linalg.expm(convert(a, opmath(a.dtype))), a.dtype) if a.size else a
