"""Lowering rules of compiler annotations: sharding constraints, memory kinds and optimization barriers."""

from __future__ import annotations

import functools
import operator

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.xla_metadata import set_xla_metadata

from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat.shard_alike import shard_alike
from torch_xla._engine.lowering.registry import lower


@lower("torch_xla::reshard")
def _reshard(x: jax.Array, sharding: int) -> jax.Array:
    return lax.with_sharding_constraint(x, sharding_ids.sharding_from_id(sharding))


@lower("torch_xla::to_manual", "torch_xla::from_manual")
def _manual(x: jax.Array, sharding: int, shape: list[int], transposed: bool) -> jax.Array:
    """Raise: compilation/manual_sharding.py lowers these ops in graphs; other traces have no mesh to shard over."""
    raise NotImplementedError("manual sharding is only supported in recorded graphs, not inside jax functions")


@lower("torch_xla::shard_alike")
def _shard_alike(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(shard_alike(*inputs))


#: XLA's CPU compiler has no such annotation before this release of jax.
_CPU_REJECTS_PLACEMENT = jax.__version_info__ < (0, 10, 2)


@lower("torch_xla::to_memory_kind")
@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _to_memory_kind_rule(x: jax.Array, host: bool) -> jax.Array:
    """Annotate the memory of a value, as jax.device_put does for TPUs and GPUs.

    jax.device_put leaves no annotation in a program for the CPU, where XLA ignores it; tools that read the HLO look for
    it on every platform.
    """
    if _CPU_REJECTS_PLACEMENT:
        placed: jax.Array = jax.lax.platform_dependent(x, cpu=lambda x: x, default=lambda x: _annotate(x, host))
        return placed
    return _annotate(x, host)


def _annotate(x: jax.Array, host: bool) -> jax.Array:
    annotate = jax.ffi.ffi_call(
        "annotate_device_placement", x, has_side_effect=True, custom_call_api_version=1, vmap_method="broadcast_all"
    )
    with set_xla_metadata(_xla_buffer_placement="pinned_host" if host else "device"):
        return annotate(x)


def _place_forward(x: jax.Array, host: bool) -> tuple[jax.Array, None]:
    return _to_memory_kind_rule(x, host), None


def _place_backward(host: bool, _: None, gradient: jax.Array) -> tuple[jax.Array]:
    return (_to_memory_kind_rule(gradient, not host),)


_to_memory_kind_rule.defvjp(_place_forward, _place_backward)


@lower("torch_xla::optimization_barrier")
def _optimization_barrier(inputs: list[jax.Array]) -> list[jax.Array]:
    return list(lax.platform_dependent(*inputs, cpu=_opaque_barrier, default=lambda *xs: lax.optimization_barrier(xs)))


def _opaque_barrier(*values: jax.Array) -> tuple[jax.Array, ...]:
    """Return the values through a conditional that XLA cannot simplify and that depends on all of them.

    XLA's CPU compiler (jaxlib 0.10.2) drops optimization barriers before common subexpression elimination, which would
    undo a recomputation. The condition is always true, but XLA does not know that a square modulo 4 is 0 or 1.
    """
    bits = [_first_bits(x) for x in values if x.size > 0]
    if not bits:
        return values
    total = functools.reduce(operator.add, bits)
    return lax.cond((total * total) & 3 < 2, lambda *xs: xs, lambda *xs: tuple(map(jnp.zeros_like, xs)), *values)


def _first_bits(x: jax.Array) -> jax.Array:
    first = lax.slice(x, (0,) * x.ndim, (1,) * x.ndim).reshape(())
    real = first.real if jnp.iscomplexobj(first) else first
    return lax.bitcast_convert_type(real.astype(jnp.float32), jnp.int32)
