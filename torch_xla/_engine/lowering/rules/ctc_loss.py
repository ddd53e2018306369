"""Lowering rules of the connectionist temporal classification (CTC) loss and its gradient.

Targets and lengths are inputs of the program, so that one program serves all their values. The labels of a row are its
targets with a blank before, between and after them: 2 S + 1 states for S targets.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from torch_xla._engine.lowering.nn_common import widen
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower

Pair = tuple[jax.Array, jax.Array]


def _labels(targets: jax.Array, blank: int) -> Pair:
    """Return (label of each state, whether it may be entered from two states before), both [batch, states]."""
    rows, width = targets.shape
    labels = jnp.full((rows, 2 * width + 1), blank, targets.dtype).at[:, 1::2].set(targets)
    before = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    return labels, (labels != blank) & (labels != before)


def _emissions(log_probs: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the log-probability of each state's label, [time, batch, states]."""
    places = jnp.broadcast_to(labels, (log_probs.shape[0], *labels.shape))
    return jnp.take_along_axis(log_probs, places, 2, mode="clip")


def _shift(x: jax.Array, by: int) -> jax.Array:
    return jnp.pad(x, ((0, 0), (by, 0)), constant_values=-jnp.inf)[:, : x.shape[1]]


def _logsumexp(*terms: jax.Array) -> jax.Array:
    top = jnp.max(jnp.stack(terms), 0)
    top = jnp.where(jnp.isneginf(top), 0, top)
    return top + jnp.log(sum(jnp.exp(term - top) for term in terms))


def _forward(emissions: jax.Array, skips: jax.Array) -> jax.Array:
    """Return the log-probability of all paths to each state, including its emission, [time, batch, states]."""

    def step(alpha: jax.Array, emission: jax.Array) -> Pair:
        skipping = jnp.where(skips, _shift(alpha, 2), -jnp.inf)
        new = _logsumexp(alpha, _shift(alpha, 1), skipping) + emission
        return new, new

    states = lax.iota(np.int32, emissions.shape[2])
    first = jnp.where(states < 2, emissions[0], -jnp.inf)
    return jnp.concatenate([first[None], lax.scan(step, first, emissions[1:])[1]])


def _backward(emissions: jax.Array, skips: jax.Array, times: jax.Array, ends: jax.Array) -> jax.Array:
    """Return the log-probability of all paths from each state to an end, without emission, [time, batch, states]."""
    left = jnp.pad(skips, ((0, 0), (0, 2)))[:, 2:]  # whether the second next state may be entered from this one

    def step(beta: jax.Array, x: Pair) -> Pair:
        emission, time = x  # of the next time step
        later = beta + emission
        ahead = [jnp.pad(later, ((0, 0), (0, by)), constant_values=-jnp.inf)[:, by:] for by in (1, 2)]
        new = _logsumexp(later, ahead[0], jnp.where(left, ahead[1], -jnp.inf))
        new = jnp.where((time < times)[:, None], new, last)
        return new, new

    states = lax.iota(np.int32, emissions.shape[2])[None]
    last = jnp.where((states == ends[:, None]) | (states == ends[:, None] - 1), 0.0, -jnp.inf).astype(emissions.dtype)
    steps = lax.iota(np.int32, emissions.shape[0])[1:]
    _, betas = lax.scan(step, last, (emissions[1:], steps), reverse=True)
    return jnp.concatenate([betas, last[None]])


@lower("aten::_ctc_loss.Tensor")
def _ctc_loss(
    log_probs: jax.Array, targets: jax.Array, times: jax.Array, lengths: jax.Array, blank: int = 0,
    zero_infinity: bool = False,
) -> Pair:  # fmt: skip
    """Return the negative log-likelihood of each row, and log alpha, [batch, time, states]."""
    labels, skips = _labels(targets, blank)
    alpha = _forward(_emissions(widen(log_probs), labels), skips)
    alpha = jnp.moveaxis(alpha, 0, 1)
    last = jnp.take_along_axis(alpha, jnp.maximum(times - 1, 0)[:, None, None], 1, mode="clip")[:, 0]
    ends = [jnp.take_along_axis(last, end[:, None], 1, mode="clip")[:, 0] for end in (2 * lengths, 2 * lengths - 1)]
    likelihood = _logsumexp(ends[0], jnp.where(lengths > 0, ends[1], -jnp.inf))
    # an input of length 0 matches only the empty target
    likelihood = jnp.where(times > 0, likelihood, jnp.where(lengths > 0, -jnp.inf, 0))
    return (-likelihood).astype(log_probs.dtype), alpha.astype(log_probs.dtype)


@lower("aten::_ctc_loss_backward.Tensor", ctx=True)
def _ctc_loss_backward(
    ctx: LoweringRuleContext, grad: jax.Array, log_probs: jax.Array, targets: jax.Array, times: jax.Array,
    lengths: jax.Array, loss: jax.Array, log_alpha: jax.Array, blank: int, zero_infinity: bool = False,
) -> jax.Array:  # fmt: skip
    """Return torch's gradient, which is with respect to the input of the log_softmax that computed ``log_probs``."""
    wide, labels_skips = widen(log_probs), _labels(targets, blank)
    labels, skips = labels_skips
    beta = _backward(_emissions(wide, labels), skips, times, 2 * lengths)
    ways = jnp.moveaxis(widen(log_alpha), 1, 0) + beta + widen(loss)[None, :, None]
    within = lax.iota(np.int32, labels.shape[1])[None] <= 2 * lengths[:, None]
    shares = jnp.where(within[None], jnp.exp(ways), 0)
    rows = lax.broadcasted_iota(np.int32, labels.shape, 0)
    posterior = jnp.zeros_like(wide).at[:, rows, labels].add(shares, mode="drop")
    found = (jnp.exp(wide) - posterior) * widen(grad)[None, :, None]
    inside = lax.iota(np.int32, wide.shape[0])[:, None] < times[None]
    if zero_infinity:
        inside = inside & ~jnp.isinf(loss)[None]
    return jnp.where(inside[..., None], found, 0).astype(ctx.dtype)
