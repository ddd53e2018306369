"""Works around a miscompilation of XLA's CPU backend: separates the operand of a scatter from its values."""

from __future__ import annotations

import jax
from jax import lax


def scatter_target(x: jax.Array) -> jax.Array:
    """Return ``x`` as the operand of a scatter whose values may depend on ``x``.

    XLA's CPU compiler (jaxlib 0.10.2) turns a scatter with one index into a dynamic-update-slice and fuses it in place
    with the computation of its values, which then reads elements that are already overwritten. An optimization barrier
    makes the operand a separate value. tests/fuzz/test_random_programs.py (FOUND) has the program that shows it.
    """
    result: jax.Array = lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda a: a)
    return result
