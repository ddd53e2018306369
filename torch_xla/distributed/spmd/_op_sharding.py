"""XLA's text format of shardings (OpSharding), which ``t.sharding_spec`` returns, and sharding types."""

from __future__ import annotations

import enum

from jax.sharding import NamedSharding

from torch_xla._engine.base import sharding_ids
from torch_xla._engine.compat import sharding as orders
from torch_xla._engine.parallel import spmd


class ShardingType(enum.IntEnum):
    """Sharding types, with upstream's numbers."""

    REPLICATED = 0
    MAXIMAL = 1
    TUPLE = 2
    TILED = 3
    MANUAL = 4
    PARTIAL = 5
    UNKNOWN = 6


def op_sharding_string(found: NamedSharding, rank: int) -> str:
    """Return XLA's text of a sharding for tensors with ``rank`` dimensions."""
    parts = sharding_ids.partition_counts(found, rank)
    if all(count == 1 for count in parts):
        return "{replicated}"
    holders: dict[tuple[int, ...], list[int]] = {}
    numbers = {device: number for number, device in enumerate(spmd.mesh_devices())}
    for device, index in found.devices_indices_map(parts).items():
        holders.setdefault(tuple(part.start or 0 for part in index), []).append(numbers[device])
    copies = len(next(iter(holders.values())))
    sizes, last = [*parts, copies][: rank + (copies > 1)], " last_tile_dim_replicate" if copies > 1 else ""
    order = ",".join(str(number) for start in sorted(holders) for number in _in_mesh_order(found, holders[start]))
    return f"{{devices=[{','.join(map(str, sizes))}]{order}{last}}}"


def _in_mesh_order(found: NamedSharding, numbers: list[int]) -> list[int]:
    return [number for number in orders.device_order(found) if number in numbers]


def sharding_type_of_string(spec: str) -> ShardingType:
    """Return the type of a sharding in XLA's text format."""
    if spec == "{replicated}":
        return ShardingType.REPLICATED
    return ShardingType.PARTIAL if spec.endswith("replicate}") else ShardingType.TILED
