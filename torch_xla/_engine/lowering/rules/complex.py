"""Lowering rules of complex numbers: construction, conjugation, real and imaginary parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from torch_xla._engine.lowering.cast import convert
from torch_xla._engine.lowering.registry import LoweringRuleContext, lower, register


def _conj(x: jax.Array) -> jax.Array:
    return jnp.conj(x) if jnp.iscomplexobj(x) else x


def _view_as_real(x: jax.Array) -> jax.Array:
    return jnp.stack([x.real, x.imag], axis=-1)


def _view_as_complex(x: jax.Array) -> jax.Array:
    return lax.complex(x[..., 0], x[..., 1])


for _name in ("_conj", "_conj_copy", "_conj_physical", "conj_physical"):
    register(f"aten::{_name}", _conj)
for _name in ("_neg_view", "_neg_view_copy"):
    register(f"aten::{_name}", lambda x: -x)
for _name in ("view_as_complex", "view_as_complex_copy"):
    register(f"aten::{_name}", _view_as_complex)
for _name in ("view_as_real", "view_as_real_copy"):
    register(f"aten::{_name}", _view_as_real)

register("aten::imag", lambda x: x.imag)
register("aten::real", lambda x: x.real)


@lower("aten::angle", ctx=True)
def _angle(context: LoweringRuleContext, x: jax.Array) -> jax.Array:
    """Compute the angle; of a real number it is 0 or pi (nan for nan), and -0.0 counts as positive."""
    if jnp.iscomplexobj(x):
        return jnp.angle(x)
    x = convert(x, context.dtype)
    return jnp.where(jnp.isnan(x), x, jnp.where(x < 0, convert(jnp.pi, x.dtype), 0))


@lower("aten::complex")
def _complex(real: jax.Array, imag: jax.Array) -> jax.Array:
    return lax.complex(*jnp.broadcast_arrays(real, imag))


@lower("aten::polar")
def _polar(modulus: jax.Array, angle: jax.Array) -> jax.Array:
    return _complex(modulus * jnp.cos(angle), modulus * jnp.sin(angle))
