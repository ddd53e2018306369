"""DTensor's interface on an xla mesh with SPMD, where a tensor is always global: "local" tensors equal DTensors.

    torch                               with SPMD
    DTensor.from_local(t, mesh, p)      t, sharded by p; t is global, not one rank's shard
    t.redistribute(mesh, p)             t, sharded by p, differentiable
    t.full_tensor()                     t, replicated
    t.to_local()                        t itself
    t.placements, t.device_mesh         the sharding of t over the mesh that it was last sharded on

torch dispatches distribute_tensor and distribute_module to api.py. Without SPMD, in a job with one device per process
and a process group of the backend xla, torch's DTensor is used, over that group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._engine.base.import_hooks import on_import
from torch_xla._engine.compat import distributed as compat
from torch_xla.distributed.spmd._device_mesh import to_global_mesh
from torch_xla.distributed.spmd._mesh import get_1d_mesh, is_on_mesh, is_spmd_mesh
from torch_xla.distributed.spmd.xla_sharded_tensor import XLAShardedTensor, get_sharding, is_sharded
from torch_xla.distributed.spmd.xla_sharding import mark_sharding_with_gradients

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

#: The attribute of a tensor that has been sharded over a DeviceMesh.
_MESH = "_torch_xla_device_mesh"
_PLACEMENTS = "_torch_xla_placements"


def attach_mesh(t: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement] | None = None) -> torch.Tensor:
    """Attach a mesh to the tensor, and its placements: the given ones, or those derived from its sharding."""
    setattr(t, _MESH, mesh)
    setattr(t, _PLACEMENTS, None if placements is None else tuple(placements))
    return t


def with_placements(t: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement]) -> torch.Tensor:
    """Return a tensor of the same values, sharded over the mesh, as is its gradient. Raises as mark_sharding."""
    where, spec = to_global_mesh(t, mesh, placements)
    return attach_mesh(mark_sharding_with_gradients(t, where, spec), mesh, placements)


def redistribute(
    t: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    *,
    async_op: bool = False,
    **_: Any,
) -> torch.Tensor:
    """Return a tensor of the same values, resharded over the mesh. Raises as mark_sharding.

    Args:
      t: an xla tensor.
      device_mesh: the mesh; default: that of the tensor.
      placements: a placement for each dimension of the mesh.
      async_op: accepted for compatibility.
    """
    mesh = device_mesh or getattr(t, _MESH, None)
    if mesh is None or placements is None:
        raise ValueError(f"redistribute of a tensor of shape {list(t.shape)}: pass device_mesh and placements")
    return with_placements(t, mesh, placements)


def full_tensor(t: torch.Tensor, **_: Any) -> torch.Tensor:
    """Return a replicated tensor of the same values; differentiable."""
    return mark_sharding_with_gradients(t, get_1d_mesh(), (None,) * t.dim())


def placements(t: torch.Tensor) -> tuple[Placement, ...]:
    """Return the placements of the tensor, one per dimension of its mesh; () without a sharding.

    The mesh is the DeviceMesh on which it was last sharded, or that of mark_sharding.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard

    asked: tuple[Placement, ...] | None = getattr(t, _PLACEMENTS, None)
    if asked is not None:
        return asked
    mesh, found = getattr(t, _MESH, None), get_sharding(t)
    if found is None:
        return ()
    axes = {name: dim for dim, names in enumerate(found.spec) for name in _as_dim_names(names)}
    if mesh is None:
        names = tuple(found.mesh.axis_names)
    else:
        names = mesh.mesh_dim_names or tuple(f"axis{i}" for i in range(mesh.ndim))
    return tuple(Shard(axes[name]) if name in axes else Replicate() for name in names)


def _as_dim_names(names: Any) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _from_local(
    original: Callable[..., Any],
    local_tensor: torch.Tensor,
    device_mesh: DeviceMesh | None = None,
    placements: Sequence[Placement] | None = None,
    **options: Any,
) -> Any:
    if device_mesh is None or not is_spmd_mesh(device_mesh):
        return original(local_tensor, device_mesh, placements, **options)
    from torch.distributed.tensor.placement_types import Replicate

    return with_placements(local_tensor.to("xla"), device_mesh, placements or [Replicate()] * device_mesh.ndim)


def _wrap_from_local(module: ModuleType) -> None:
    original = module.DTensor.from_local
    module.DTensor.from_local = staticmethod(lambda *args, **kwargs: _from_local(original, *args, **kwargs))


def _spmd_method(call: Callable[..., Any], name: str) -> property:
    """A method that xla tensors have with SPMD, and other tensors do not."""

    def get(t: torch.Tensor) -> Any:
        if not is_on_mesh(t):
            raise AttributeError(f"{type(t).__name__!r} object has no attribute {name!r}")
        return lambda *args, **kwargs: call(t, *args, **kwargs)

    return property(get, doc=call.__doc__)


def _mesh_property(answer: Callable[[torch.Tensor], Any], name: str) -> property:
    """A property of tensors that are sharded over a mesh; device_mesh requires a DeviceMesh."""

    def get(t: torch.Tensor) -> Any:
        if _MESH not in t.__dict__ and (name == "device_mesh" or not is_sharded(t)):
            raise AttributeError(f"{type(t).__name__!r} object has no attribute {name!r}: it has no DeviceMesh")
        return answer(t)

    return property(get, doc=answer.__doc__)


def register_dtensor_methods() -> None:
    """Add DTensor's methods to tensors, and register xla meshes with torch; once."""
    words: dict[str, Callable[..., Any]] = {
        "redistribute": redistribute,
        "full_tensor": full_tensor,
        "to_local": lambda t, **_: t,
    }
    for name, call in words.items():
        setattr(torch.Tensor, name, _spmd_method(call, name))
    values: dict[str, Callable[[torch.Tensor], Any]] = {
        "placements": placements,
        "device_mesh": lambda t: getattr(t, _MESH),
    }
    for name, answer in values.items():
        setattr(torch.Tensor, name, _mesh_property(answer, name))
    XLAShardedTensor.redistribute = redistribute  # type: ignore[attr-defined]
    XLAShardedTensor.placements = property(placements)  # type: ignore[attr-defined]
    on_import("torch.distributed.tensor._api", _wrap_from_local)
    on_import("torch.distributed.device_mesh", lambda _: compat.allow_submeshes())
