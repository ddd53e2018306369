"""Manual sharding: regions of an SPMD program in which each device computes on its own shard.

    [8, 4] ─torch_xla::to_manual─► [2, 4] on each of four devices ─ops─► [2, 4] ─torch_xla::from_manual─► [8, 4]

Between the two ops, each operation runs on the shard of each device separately; XLA inserts no resharding and no
collectives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from torch_xla._engine.base import sharding_ids

ENTER, LEAVE = "torch_xla::to_manual", "torch_xla::from_manual"


@dataclass(frozen=True, slots=True)
class ManualValue:
    """A value in a manual region: [devices, *shape], one shard per device."""

    stacked: jax.Array
    mesh: Mesh


def _split_over_all_axes(mesh: Mesh) -> PartitionSpec:
    return PartitionSpec(tuple(mesh.axis_names))


def _layout(number: int) -> tuple[Mesh, PartitionSpec, tuple[str, ...]]:
    """Return mesh and spec of a sharding id, and the mesh axes along which the shards are replicated."""
    found = sharding_ids.sharding_from_id(number)
    assert isinstance(found, NamedSharding) and isinstance(found.mesh, Mesh)
    used = {name for names in found.spec for name in ((names,) if isinstance(names, str) else names or ())}
    return found.mesh, found.spec, tuple(str(name) for name in found.mesh.axis_names if name not in used)


def to_manual(value: jax.Array, number: int, once: bool) -> ManualValue:
    """Return each device's shard of a value under the sharding with id ``number``.

    With ``once``, only the first of several devices with the same shard gets it; the others get zeros.
    """
    mesh, spec, copies = _layout(number)

    def select_shard(part: jax.Array) -> jax.Array:
        for axis in copies if once else ():
            part = jnp.where(lax.axis_index(axis) == 0, part, jnp.zeros_like(part))
        return part[None]

    split: Any = jax.shard_map(
        select_shard, mesh=mesh, in_specs=spec, out_specs=_split_over_all_axes(mesh), check_vma=False
    )
    return ManualValue(split(value), mesh)


def from_manual(value: Any, number: int, total: bool) -> jax.Array:
    """Return the full value of the devices' shards; with ``total``, replicated shards are summed.

    Raises ValueError for a value that is not manually sharded.
    """
    if not isinstance(value, ManualValue):
        raise ValueError(
            "disable_manual_sharding: the tensor is not manually sharded; call enable_manual_sharding first"
        )
    mesh, spec, copies = _layout(number)

    def sum_copies(part: jax.Array) -> jax.Array:
        return lax.psum(part[0], copies) if total and copies else part[0]

    join: Any = jax.shard_map(
        sum_copies, mesh=mesh, in_specs=_split_over_all_axes(mesh), out_specs=spec, check_vma=False
    )
    full: jax.Array = join(value.stacked)
    return full


def has_manual_operand(args: Sequence[Any]) -> bool:
    """Return whether an operand is manually sharded."""
    return any(has_manual_operand(arg) if isinstance(arg, list) else isinstance(arg, ManualValue) for arg in args)


def map_per_device(operation: Callable[[list[Any]], list[Any]], args: list[Any]) -> list[Any]:
    """Apply an operation to each device's shards; operands outside of the manual region are replicated."""
    operands: list[Any] = []
    layout = _extract_arrays(args, operands)
    mesh = next(x.mesh for x in operands if isinstance(x, ManualValue))
    here = _split_over_all_axes(mesh)

    def on_one(*values: jax.Array) -> list[Any]:
        parts = [v[0] if isinstance(x, ManualValue) else v for v, x in zip(values, operands, strict=True)]
        return [None if r is None else r[None] for r in operation(_restore_arrays(layout, parts))]

    arrays = [x.stacked if isinstance(x, ManualValue) else x for x in operands]
    specs = tuple(here if isinstance(x, ManualValue) else PartitionSpec() for x in operands)
    mapped: Any = jax.shard_map(on_one, mesh=mesh, in_specs=specs, out_specs=here, check_vma=False)
    results = mapped(*arrays)
    return [None if r is None else ManualValue(r, mesh) for r in results]


@dataclass(frozen=True, slots=True)
class _Place:
    number: int


def _extract_arrays(args: list[Any], operands: list[Any]) -> list[Any]:
    layout: list[Any] = []
    for arg in args:
        if isinstance(arg, list):
            layout.append(_extract_arrays(arg, operands))
        elif isinstance(arg, (ManualValue, jax.Array)):
            layout.append(_Place(len(operands)))
            operands.append(arg)
        else:
            layout.append(arg)
    return layout


def _restore_arrays(layout: list[Any], parts: Sequence[jax.Array]) -> list[Any]:
    return [
        _restore_arrays(item, parts)
        if isinstance(item, list)
        else parts[item.number]
        if isinstance(item, _Place)
        else item
        for item in layout
    ]
