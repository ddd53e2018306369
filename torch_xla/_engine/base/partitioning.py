"""Whether a program is partitioned over several devices automatically (by XLA) or manually (shard_map)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import mlir

_devices: Callable[[], int] = lambda: 1


def set_partition_count(devices: Callable[[], int]) -> None:
    """Set the function that returns the number of devices over which XLA partitions programs."""
    global _devices
    _devices = devices


def partition_count() -> int:
    """Return the number of devices over which XLA partitions the current trace; 1 in manually partitioned regions."""
    return 1 if jax.sharding.get_abstract_mesh().manual_axes else _devices()


def is_auto_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a rule is lowered for several devices and outside a manually partitioned region."""
    context: Any = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is not None:  # inside jax.shard_map
        return mesh.size > 1 and set(context.manual_axes) != set(mesh.axis_names)
    return (getattr(context, "num_devices", 1) or 1) > 1


def has_devices(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether a program is lowered for devices; if not, it is exported for a platform of any number of devices."""
    context: Any = ctx.module_context.axis_context
    return getattr(context, "mesh", None) is not None or getattr(context, "device_assignment", None) is not None
