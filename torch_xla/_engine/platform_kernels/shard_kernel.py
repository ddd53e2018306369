"""Runs a kernel on the shards of its arrays over several devices, with ``jax.shard_map``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh, PartitionSpec


@dataclass(frozen=True, slots=True)
class KernelSharding:
    """The sharding of the main arrays of a kernel: for each dimension its mesh axes, or None."""

    mesh: Mesh
    spec: tuple[Any, ...]


def shard_kernel(
    layout: KernelSharding | None,
    kernel: Callable[..., Any],
    specs: Sequence[Sequence[Any] | None],
    outs: Sequence[Any],
) -> Callable[..., Any]:
    """Return a function that runs ``kernel`` on the shards of each device; without a layout, return ``kernel``.

    ``specs`` and ``outs`` are the partition specs of its arguments and results; None for an argument that is None.
    """
    if layout is None:
        return kernel
    ins = tuple(None if spec is None else PartitionSpec(*spec) for spec in specs)
    results = tuple(PartitionSpec(*spec) for spec in outs)
    return jax.shard_map(kernel, mesh=layout.mesh, in_specs=ins, out_specs=results, check_vma=False)
