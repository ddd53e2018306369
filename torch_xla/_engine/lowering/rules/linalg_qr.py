"""Lowering rules of QR by Householder reflectors (geqrf, ormqr), the pseudo-inverse, and least squares."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.base import dtypes
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower
from torch_xla._engine.lowering.rules.linalg import svd
from torch_xla._engine.lowering.rules.matmul import precision_for

Maybe = jax.Array | None


def _adjoint(x: jax.Array) -> jax.Array:
    return jnp.conj(x.mT)


@lower("aten::linalg_householder_product")
def _householder_product(a: jax.Array, tau: jax.Array) -> jax.Array:
    return lax.linalg.householder_product(a, tau)


@lower("aten::ormqr")
def _ormqr(a: jax.Array, tau: jax.Array, c: jax.Array, left: bool = True, transpose: bool = False) -> jax.Array:
    """Compute ``Q c``, ``Q^H c``, ``c Q`` or ``c Q^H`` with the full square Q of the reflectors."""
    n = a.shape[-2]
    reflectors = a[..., : tau.shape[-1]]  # further columns belong to R
    square = jnp.pad(reflectors, [(0, 0)] * (a.ndim - 1) + [(0, n - reflectors.shape[-1])])
    taus = jnp.pad(tau, [(0, 0)] * (tau.ndim - 1) + [(0, n - tau.shape[-1])])
    q = lax.linalg.householder_product(square, taus)
    q = _adjoint(q) if transpose else q
    first, second = (q, c) if left else (c, q)
    return jnp.matmul(first, second, precision=precision_for(a.dtype))


@lower("aten::linalg_pinv.atol_rtol_tensor")
def _pinv(a: jax.Array, atol: Maybe = None, rtol: Maybe = None, hermitian: bool = False) -> jax.Array:
    """Compute the pseudo-inverse; singular values (or eigenvalues) up to max(atol, rtol * largest) count as zero."""
    if not a.size:
        return jnp.zeros(a.mT.shape, a.dtype)
    if hermitian:
        u, values = lax.linalg.eigh(a, symmetrize_input=False)
        right = _adjoint(u)
    else:
        u, values, right = svd(a, full_matrices=False)
    least = jnp.zeros((), values.dtype) if atol is None else atol.astype(values.dtype)
    if rtol is None:
        share = float(np.finfo(a.dtype).eps) * max(a.shape[-2:])
        rtol = jnp.where(least > 0, 0.0, share) if atol is not None else jnp.asarray(share)
    size = jnp.abs(values)
    limit = jnp.maximum(least[..., None], rtol.astype(size.dtype)[..., None] * jnp.max(size, -1, keepdims=True))
    inverse = jnp.where(size > limit, 1 / values, 0).astype(a.dtype)
    return jnp.matmul(_adjoint(right) * inverse[..., None, :], _adjoint(u), precision=precision_for(a.dtype))


@lower("aten::geqrf")
def _geqrf(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    reflectors, tau = jnp.linalg.qr(a, mode="raw")
    return reflectors.mT, tau


@lower("aten::linalg_lstsq", ctx=True)
def _lstsq(
    ctx: LoweringRuleContext, a: jax.Array, b: jax.Array, rcond: float | None = None, driver: str | None = None
) -> tuple[jax.Array, ...]:
    """Return the minimum-norm solution for all drivers; singular values up to ``rcond`` * largest count as 0."""
    shapes = [shape for shape, _ in ctx.out_specs]
    empty = [jnp.zeros(shape, dtypes.storage_numpy_dtype(ctx.dtype_of(i))) for i, shape in enumerate(shapes)]
    if not a.size:
        return tuple(empty)
    right = b if b.ndim == a.ndim else b[..., None]
    u, values, v = svd(a, full_matrices=False)
    share = float(np.finfo(a.dtype).eps) * max(a.shape[-2:]) if rcond is None else rcond
    nonzero = (values > share * jnp.max(values, -1, keepdims=True)) & (values > 0)
    inverse = jnp.where(nonzero, 1 / values, 0).astype(a.dtype)[..., None]
    precision = precision_for(a.dtype)
    solution = jnp.matmul(
        _adjoint(v), inverse * jnp.matmul(_adjoint(u), right, precision=precision), precision=precision
    )
    found = [solution.reshape(shapes[0]), *empty[1:]]
    if empty[1].size:
        rest = right - jnp.matmul(a, solution, precision=precision)
        found[1] = jnp.sum(jnp.square(jnp.abs(rest)), -2).reshape(shapes[1])
    if driver != "gels":
        found[2] = jnp.sum(nonzero, -1).astype(empty[2].dtype)
    if empty[3].size:
        found[3] = values
    return tuple(found)
