"""jax shardings with another device order than their mesh, and conversion of compiler-chosen shardings."""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from torch_xla._engine.compat.private_api import MissingPrivateApiError, PrivateApi

_ORDERED = PrivateApi(
    "jax.sharding",
    "NamedSharding._logical_device_ids",
    "meshes with different device orders in one program",
    "a mesh with another device order raises",
)
_GSPMD = PrivateApi(
    "jax._src.sharding_impls",
    "GSPMDSharding",
    "compiler-chosen shardings that no mesh axes describe, as inputs of the next program",
    "reading a result with such a sharding in another program raises",
)
_INDIVISIBLE = PrivateApi(
    "jax._src.sharding",
    "IndivisibleError",
    "unannotated results if the number of devices has several prime factors",
    "a program raises if XLA shards a result across such factors",
)


def reordered_sharding(mesh: Mesh, spec: PartitionSpec, order: tuple[int, ...]) -> NamedSharding:
    """Return a sharding over a mesh with another device order: device ``order[i]`` is at position ``i``.

    Raises MissingPrivateApiError if this jax does not support that.
    """
    if order == tuple(range(len(order))):
        return NamedSharding(mesh, spec)
    try:
        return NamedSharding(mesh, spec, _logical_device_ids=order)
    except TypeError as error:
        raise MissingPrivateApiError(f"torch_xla: this jax has no {_ORDERED.path}: {_ORDERED.without}") from error


def device_order(sharding: NamedSharding) -> tuple[int, ...]:
    """Return the device order of a sharding, as positions in its mesh."""
    order = getattr(sharding, "_logical_device_ids", None)
    return tuple(range(sharding.mesh.size)) if order is None else tuple(order)


def to_named_sharding(sharding: Sharding, devices: tuple[Any, ...]) -> Sharding:
    """Convert a compiler-chosen sharding to one that programs accept; return others unchanged."""
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
    """Return the exception type that jax raises for a sharding that mesh axes cannot describe."""
    found: type[Exception] | None = _INDIVISIBLE.resolve_or_none()
    return found or MissingPrivateApiError
