"""What a scatter writes into."""

from __future__ import annotations

import jax
from jax import lax


def scatter_target(x: jax.Array) -> jax.Array:
    """``x``, as the operand of a scatter whose values may have been computed from it.

    XLA's CPU compiler (jaxlib 0.10.2) makes a dynamic-update-slice of a scatter of one index, and fuses it in place
    with the computation of its values, which then reads elements that are written already. A barrier makes the operand
    a value of its own. tests/fuzz/test_random_programs.py found it, and has the program (FOUND).
    """
    result: jax.Array = lax.platform_dependent(x, cpu=lax.optimization_barrier, default=lambda a: a)
    return result
