"""Lowering rules of torch.amp.GradScaler: unscaling gradients and updating the scale without a transfer to the host."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import convert, opmath
from torch_xla._engine.lowering.registry import lower


@lower("aten::_amp_foreach_non_finite_check_and_unscale")
def _unscale(
    gradients: list[jax.Array], found_inf: jax.Array, inv_scale: jax.Array
) -> tuple[list[jax.Array], jax.Array]:
    """Multiply the gradients by ``inv_scale``; set ``found_inf`` to 1 if a gradient is not finite."""
    bad = jnp.asarray(False)
    for gradient in gradients:
        bad |= ~jnp.isfinite(gradient).all()
    return [_times(gradient, inv_scale) for gradient in gradients], jnp.where(bad, 1, found_inf).astype(found_inf.dtype)


def _times(gradient: jax.Array, inv_scale: jax.Array) -> jax.Array:
    dtype = np.dtype(gradient.dtype)
    return convert(gradient.astype(opmath(dtype)) * inv_scale.reshape(()).astype(opmath(dtype)), dtype)


@lower("aten::_amp_update_scale")
def _update_scale(
    scale: jax.Array, tracker: jax.Array, found_inf: jax.Array, growth: float, backoff: float, interval: int
) -> tuple[jax.Array, jax.Array]:
    """Return the next scale and the steps since it changed: it shrinks after an inf, and grows after ``interval``."""
    overflowed = (found_inf != 0).reshape(scale.shape)
    successes = tracker + 1
    due = (successes == interval).reshape(scale.shape)
    grown = scale * jnp.asarray(growth, scale.dtype)
    unchanged_or_grown = jnp.where(due & jnp.isfinite(grown), grown, scale)
    shrunk = scale * jnp.asarray(backoff, scale.dtype)
    zero = jnp.zeros_like(tracker)
    steps = jnp.where(overflowed.reshape(tracker.shape) | (successes == interval), zero, successes)
    return jnp.where(overflowed, shrunk, unchanged_or_grown), steps
