"""Lowering rules of orthogonal polynomials of degree ``n`` (possibly a tensor) at ``x``, by torch's recurrences."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.lowering.elementwise import Function, arithmetic, register_table

#: (degree 1 at x, then (k, x, degree k, degree k - 1) -> degree k + 1)
Recurrence = tuple[Function, Callable[..., jax.Array]]


def _chebyshev(first: Function) -> Recurrence:
    return first, lambda k, x, p, q: 2 * x * p - q


_RECURRENCES: dict[str, Recurrence] = {
    "chebyshev_polynomial_t": _chebyshev(lambda x: x),
    "chebyshev_polynomial_u": _chebyshev(lambda x: 2 * x),
    "chebyshev_polynomial_v": _chebyshev(lambda x: 2 * x - 1),
    "chebyshev_polynomial_w": _chebyshev(lambda x: 2 * x + 1),
    "hermite_polynomial_h": (lambda x: 2 * x, lambda k, x, p, q: 2 * x * p - 2 * k * q),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, p, q: x * p - k * q),
    "laguerre_polynomial_l": (lambda x: 1 - x, lambda k, x, p, q: ((2 * k + 1 - x) * p - k * q) / (k + 1)),
    "legendre_polynomial_p": (lambda x: x, lambda k, x, p, q: ((2 * k + 1) * x * p - k * q) / (k + 1)),
}


def _polynomial(recurrence: Recurrence, shifted: bool = False) -> Function:
    first, following = recurrence

    def function(x: jax.Array, n: jax.Array) -> jax.Array:
        # Count in int64, as torch does: incrementing a float32 has no effect from 2**24. Degrees out of the range of
        # int64 convert to its smallest number on the CPU, for which the value is 0.
        degree = jnp.where(jnp.abs(n) < 2.0**63, n, -1).astype(jnp.int64)
        x, n = jnp.broadcast_arrays(2 * x - 1 if shifted else x, degree)

        def step(state: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array, jax.Array]:
            k, p, q = state
            return k + 1, jnp.where(k < n, following(k.astype(x.dtype), x, p, q), p), jnp.where(k < n, p, q)

        one = jnp.ones((), jnp.int64)
        _, p, _ = lax.while_loop(
            lambda state: jnp.any((state[0] < n) & ~jnp.isnan(state[1])), step, (one, first(x), jnp.ones_like(x))
        )
        return jnp.where(n < 0, 0, jnp.where(n == 0, 1, p)).astype(x.dtype)

    return function


_FUNCTIONS = {f"special_{name}": _polynomial(recurrence) for name, recurrence in _RECURRENCES.items()}
_FUNCTIONS |= {
    f"special_shifted_{name}": _polynomial(recurrence, shifted=True)
    for name, recurrence in _RECURRENCES.items()
    if name.startswith("chebyshev")
}
register_table(arithmetic, _FUNCTIONS, "", "x_scalar", "n_scalar")
