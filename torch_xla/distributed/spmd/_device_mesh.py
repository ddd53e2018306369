"""Convert torch's DeviceMeshes and placements to xla meshes and partition specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._engine.compat import distributed as compat
from torch_xla.distributed.spmd._mesh import Mesh
from torch_xla.distributed.spmd.xla_sharded_tensor import get_sharding

if TYPE_CHECKING:  # importing DTensor takes as long as importing torch_xla; only callers of these functions need it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """Convert a DeviceMesh: its shape, device numbers and dimension names.

    Args:
      dt_mesh: a torch.distributed DeviceMesh of xla devices.
    """
    names = dt_mesh.mesh_dim_names
    return Mesh(dt_mesh.mesh.numpy(), tuple(dt_mesh.mesh.shape), None if names is None else tuple(names))


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> tuple[int | tuple[int, ...] | None, ...]:
    """Return, for each dimension of the tensor, the mesh axes (by number) over which ``placements`` shard it.

    Args:
      tensor: a tensor of any shape.
      placements: Shard or Replicate for each dimension of the mesh.

    Raises:
      ValueError: a placement is not Shard or Replicate, or a dimension does not exist.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard

    axes: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise ValueError(f"{placement}: a tensor of shape {list(tensor.shape)} has no such dimension")
            axes[placement.dim].append(axis)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"{placement}: only Shard and Replicate are supported on xla")
    return tuple(None if not split else split[0] if len(split) == 1 else tuple(split) for split in axes)


def to_global_mesh(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[Mesh, tuple[Any, ...]]:
    """Return the mesh of all devices that contains ``device_mesh``, and the tensor's partition spec on it.

    Over a submesh (``mesh["tensor"]``) the tensor stays sharded over the other dimensions: parallelize_module over one
    submesh and fully_shard over another shard a parameter over both.
    """
    spec = convert_to_xla_partition_spec(tensor, placements)
    whole = compat.root_mesh(device_mesh)
    if whole is device_mesh:
        return convert_to_xla_mesh(device_mesh), spec
    mesh, mine = convert_to_xla_mesh(whole), device_mesh.mesh_dim_names or ()
    others = set(mesh.shape()) - set(mine)
    found = get_sharding(tensor) if tensor.device.type == "xla" else None
    before = (*(found.spec if found is not None else ()), *(None,) * tensor.dim())
    joined = []
    for entry, axes in zip(spec, before, strict=False):
        kept = [axis for axis in _entry_axes(axes) if axis in others]
        joined.append((*kept, *(mine[axis] for axis in _entry_axes(entry))) or None)
    return mesh, tuple(joined)


def _entry_axes(entry: Any) -> tuple[Any, ...]:
    return () if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,)
