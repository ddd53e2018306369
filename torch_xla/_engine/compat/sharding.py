"""Shardings of jax over devices in another order than the mesh's, and what its compiler calls a sharding."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from torch_xla._engine.compat.private_api import MissingPrivateApiError, PrivateApi

_ORDERED = PrivateApi(
    "jax.sharding",
    "NamedSharding._logical_device_ids",
    "meshes that go through the same devices in different orders, in one program",
    "a mesh in another order than that of the devices raises",
)
_GSPMD = PrivateApi(
    "jax._src.sharding_impls",
    "GSPMDSharding",
    "layouts that XLA chose, and that no axes of a mesh describe, as inputs of the next program",
    "a program with such a result raises when another one reads it",
)
_INDIVISIBLE = PrivateApi(
    "jax._src.sharding",
    "IndivisibleError",
    "results that nobody marked, where the number of devices has several prime factors",
    "a program with a result that XLA splits across such factors raises",
)


def reordered_sharding(mesh: Mesh, spec: PartitionSpec, order: tuple[int, ...]) -> NamedSharding:
    """The sharding over a mesh whose devices are gone through in another order: ``order[i]`` is at place ``i``.

    Raises MissingError where this jax cannot say that.
    """
    if order == tuple(range(len(order))):
        return NamedSharding(mesh, spec)
    try:
        return NamedSharding(mesh, spec, _logical_device_ids=order)
    except TypeError as error:
        raise MissingPrivateApiError(f"torch_xla: this jax has no {_ORDERED.path}: {_ORDERED.without}") from error


def device_order(sharding: NamedSharding) -> tuple[int, ...]:
    """The order in which the sharding goes through its mesh's devices, by place in the mesh."""
    order = getattr(sharding, "_logical_device_ids", None)
    return tuple(range(sharding.mesh.size)) if order is None else tuple(order)


def to_named_sharding(sharding: Sharding, devices: tuple[Any, ...]) -> Sharding:
    """A sharding that XLA chose, as one that programs take; others as they are."""
    kind = _GSPMD.resolve_or_none()
    if kind is None or not isinstance(sharding, kind):
        return sharding
    compiled: Any = sharding._hlo_sharding
    if not compiled.is_tiled():
        return NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec(), memory_kind=sharding.memory_kind)
    sizes = list(compiled.tile_assignment_dimensions())
    names = tuple(f"d{number}" for number in range(len(sizes)))
    split = names[:-1] if compiled.replicate_on_last_tile_dim() else names
    mesh = Mesh(np.array(devices).reshape(sizes), names)
    return reordered_sharding(mesh, PartitionSpec(*split), tuple(compiled.tile_assignment_devices()))


def indivisible_error() -> type[Exception]:
    """What jax raises for a sharding that the axes of a mesh cannot describe."""
    found: type[Exception] | None = _INDIVISIBLE.resolve_or_none()
    return found or MissingPrivateApiError
