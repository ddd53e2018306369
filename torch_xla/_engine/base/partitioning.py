"""Who splits a program over several devices: XLA, or the program itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.interpreters import mlir

_devices: Callable[[], int] = lambda: 1


def set_partition_count(devices: Callable[[], int]) -> None:
    """From now on XLA splits programs over so many devices."""
    global _devices
    _devices = devices


def partition_count() -> int:
    """Over how many devices XLA splits what is being traced; 1 in a part of it that says what each device does."""
    return 1 if jax.sharding.get_abstract_mesh().manual_axes else _devices()


def is_auto_partitioned(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether this is in a program over several devices, and not in a part of it that says what each device does."""
    context: Any = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is not None:  # of jax.shard_map
        return mesh.size > 1 and set(context.manual_axes) != set(mesh.axis_names)
    return (getattr(context, "num_devices", 1) or 1) > 1
