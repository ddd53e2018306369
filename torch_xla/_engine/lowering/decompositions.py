"""Matrix decompositions that lowering rules use, and that the compiler of a platform may lack.

jax lowers them to LAPACK, to a vendor's library, or to other operations, by platform. device/capabilities.py
compiles the probes; operators whose decomposition is missing run on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


def _solve(a: jax.Array) -> jax.Array:
    return lax.linalg.triangular_solve(a, a, left_side=True)


#: jax's primitive -> a function of a square matrix that uses it.
PROBES: dict[str, Callable[..., Any]] = {
    "cholesky": lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
    "eigh": lambda a: lax.linalg.eigh(a, symmetrize_input=False),
    "geqrf": lambda a: jnp.linalg.qr(a, mode="raw"),
    "householder_product": lambda a: lax.linalg.householder_product(a, a[0]),
    "lu": lambda a: lax.linalg.lu(a),
    "qr": lambda a: lax.linalg.qr(a, full_matrices=False),
    "svd": lambda a: lax.linalg.svd(a, full_matrices=False),
    "triangular_solve": _solve,
}

#: Operator -> the decompositions that its rule uses.
USED: dict[str, tuple[str, ...]] = {
    "aten::_linalg_det": ("lu",),
    "aten::_linalg_eigh": ("eigh",),
    "aten::_linalg_slogdet": ("lu",),
    "aten::_linalg_solve_ex": ("lu", "triangular_solve"),
    "aten::_linalg_svd": ("svd",),
    "aten::cholesky": ("cholesky",),
    "aten::cholesky_inverse": ("triangular_solve",),
    "aten::cholesky_solve": ("triangular_solve",),
    "aten::geqrf": ("geqrf",),
    "aten::linalg_cholesky_ex": ("cholesky",),
    "aten::linalg_householder_product": ("householder_product",),
    "aten::linalg_inv_ex": ("lu", "triangular_solve"),
    "aten::linalg_lstsq": ("svd",),
    "aten::linalg_lu": ("lu",),
    "aten::linalg_lu_factor_ex": ("lu",),
    "aten::linalg_lu_solve": ("triangular_solve",),
    "aten::linalg_matrix_exp": ("lu", "triangular_solve"),
    "aten::linalg_pinv.atol_rtol_tensor": ("svd", "eigh"),
    "aten::linalg_qr": ("qr",),
    "aten::linalg_solve_triangular": ("triangular_solve",),
    "aten::ormqr": ("householder_product",),
    "aten::triangular_solve": ("triangular_solve",),
}
