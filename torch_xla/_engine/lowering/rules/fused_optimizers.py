"""Lowering rules of torch's fused optimizers (_fused_adam, _fused_sgd, ...), which update all parameters of a group.

Scalars are computed in float32. Each rule returns the new values of the lists that torch's kernel writes to, in the
order of its arguments. If ``found_inf`` (of torch.amp.GradScaler) is 1, all values are returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

from torch_xla._engine.lowering.cast import opmath
from torch_xla._engine.lowering.registry import Operand, ScalarOperand, lower

Arrays = list[jax.Array]


def _scalar(value: Operand) -> jax.Array:
    """Convert a number, or a learning rate tensor, to float64, so that values computed from it are rounded once."""
    return jnp.asarray(value.value if isinstance(value, ScalarOperand) else value, np.float64).reshape(())


def _cast_like(value: jax.Array, x: jax.Array) -> jax.Array:
    return value.astype(x.dtype)


def _wide(x: jax.Array) -> jax.Array:
    return x.astype(opmath(np.dtype(x.dtype)))


def _unscale_grads(grads: Arrays, grad_scale: jax.Array | None) -> Arrays:
    """Divide the gradients by the scale of the loss, if there is one."""
    if grad_scale is None:
        return grads
    return [(_wide(g) / _cast_like(grad_scale.reshape(()), _wide(g))).astype(g.dtype) for g in grads]


def _flatten_updates(found_inf: jax.Array | None, old: Sequence[Arrays], new: Sequence[Arrays]) -> Arrays:
    """Concatenate the lists of new values, in the dtypes of the old; if ``found_inf`` is 1, of the old values."""
    pairs = [pair for before, after in zip(old, new, strict=True) for pair in zip(before, after, strict=True)]
    if found_inf is None:
        return [after.astype(before.dtype) for before, after in pairs]
    overflowed = found_inf.reshape(()) == 1
    return [jnp.where(overflowed, before, after.astype(before.dtype)) for before, after in pairs]


def _power_below_1(base: jax.Array, steps: jax.Array) -> jax.Array:
    """Compute 1 - base ** steps in float32, accurate also for a base just below 1."""
    rest = (1 - base).astype(np.float32)
    return -jnp.expm1(steps.reshape(()).astype(np.float32) * jnp.log1p(-rest))


def _adam(decoupled: bool) -> Callable[..., Arrays]:
    def rule(
        params: Arrays, grads: Arrays, means: Arrays, squares: Arrays, largest: Arrays, steps: Arrays,
        lr: Operand, beta1: Operand, beta2: Operand, weight_decay: Operand, eps: Operand, amsgrad: bool, maximize: bool,
        grad_scale: jax.Array | None, found_inf: jax.Array | None,
    ) -> Arrays:  # fmt: skip
        rate, first, second, decay, small = map(_scalar, (lr, beta1, beta2, weight_decay, eps))
        unscaled = _unscale_grads(grads, grad_scale)
        new: tuple[Arrays, ...] = ([], [], [], [])
        for i, step in enumerate(steps):
            p, g, m, v = (_wide(column[i]) for column in (params, unscaled, means, squares))
            g = -g if maximize else g
            if decoupled:
                p = p * _cast_like(1 - rate * decay, p)
            else:
                g = g + p * _cast_like(decay, p)
            m = m + (g - m) * _cast_like(1 - first, m)
            v = v * _cast_like(second, v) + g * g * _cast_like(1 - second, v)
            bound = jnp.maximum(_wide(largest[i]), v) if amsgrad else v
            width = jnp.sqrt(bound) / _cast_like(jnp.sqrt(_power_below_1(second, step)), v) + _cast_like(small, v)
            p = p - _cast_like(rate / _power_below_1(first, step), p) * m / width
            for column, value in zip(new, (p, m, v, bound), strict=True):
                column.append(value)
        p_new, m_new, v_new, bounds = new
        return _flatten_updates(
            found_inf,
            (params, grads, means, squares, largest),
            (p_new, unscaled, m_new, v_new, bounds if amsgrad else largest),
        )

    return rule


lower("torch_xla::fused_adam", "torch_xla::fused_adam.tensor_lr")(_adam(decoupled=False))
lower("torch_xla::fused_adamw", "torch_xla::fused_adamw.tensor_lr")(_adam(decoupled=True))


@lower("torch_xla::fused_sgd", "torch_xla::fused_sgd.tensor_lr")
def _sgd(
    params: Arrays, grads: Arrays, buffers: Arrays, weight_decay: Operand, momentum: Operand, lr: Operand,
    dampening: Operand, nesterov: bool, maximize: bool, is_first_step: bool,
    grad_scale: jax.Array | None, found_inf: jax.Array | None,
) -> Arrays:  # fmt: skip
    decay, mu, rate, damped = map(_scalar, (weight_decay, momentum, lr, dampening))
    unscaled = _unscale_grads(grads, grad_scale)
    new_params, new_buffers = [], []
    for i, param in enumerate(params):
        p, g = _wide(param), _wide(unscaled[i])
        g = (-g if maximize else g) + p * _cast_like(decay, p)
        if buffers:
            b = g if is_first_step else _wide(buffers[i]) * _cast_like(mu, g) + g * _cast_like(1 - damped, g)
            g = g + b * _cast_like(mu, g) if nesterov else b
            new_buffers.append(b)
        new_params.append(p - g * _cast_like(rate, p))
    return _flatten_updates(found_inf, (params, grads, buffers), (new_params, unscaled, new_buffers))


@lower("torch_xla::fused_adagrad", "torch_xla::fused_adagrad.tensor_lr")
def _adagrad(
    params: Arrays, grads: Arrays, sums: Arrays, steps: Arrays, lr: Operand, lr_decay: Operand, weight_decay: Operand,
    eps: Operand, maximize: bool, grad_scale: jax.Array | None, found_inf: jax.Array | None,
) -> Arrays:  # fmt: skip
    rate, slower, decay, small = map(_scalar, (lr, lr_decay, weight_decay, eps))
    unscaled = _unscale_grads(grads, grad_scale)
    new_params, new_sums = [], []
    for p, g, s, step in zip(map(_wide, params), map(_wide, unscaled), map(_wide, sums), steps, strict=True):
        g = (-g if maximize else g) + p * _cast_like(decay, p)
        s = s + g * g
        now = rate / (1 + (step.reshape(()) - 1) * slower)
        new_params.append(p - _cast_like(now, p) * g / (jnp.sqrt(s) + _cast_like(small, s)))
        new_sums.append(s)
    return _flatten_updates(found_inf, (params, grads, sums), (new_params, unscaled, new_sums))
