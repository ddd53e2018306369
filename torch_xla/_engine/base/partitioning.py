"""Who splits a program over several devices: XLA, or the program itself."""

from __future__ import annotations

from typing import Any

from jax.interpreters import mlir


def is_by_compiler(ctx: mlir.LoweringRuleContext) -> bool:
    """Whether this is in a program over several devices, and not in a part of it that says what each device does."""
    context: Any = ctx.module_context.axis_context
    mesh = getattr(context, "mesh", None)
    if mesh is not None:  # of jax.shard_map
        return mesh.size > 1 and set(context.manual_axes) != set(mesh.axis_names)
    return (getattr(context, "num_devices", 1) or 1) > 1
