"""torch's DTensor words for the same thing: a DeviceMesh and placements, as torch.distributed.tensor calls them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import torch

from torch_xla import runtime
from torch_xla._engine.base.compat import distributed as compat
from torch_xla.distributed.spmd import _dtensor
from torch_xla.distributed.spmd._mesh import Mesh
from torch_xla.distributed.spmd.xla_sharding import ShardingSpec, get_sharding, mark_sharding

if TYPE_CHECKING:  # importing DTensor takes as long as all of torch_xla; only who calls these needs it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

P = ParamSpec("P")
R = TypeVar("R")


def convert_to_xla_mesh(dt_mesh: DeviceMesh) -> Mesh:
    """The mesh of a DeviceMesh: its shape, its device numbers and its dimensions' names."""
    names = dt_mesh.mesh_dim_names
    return Mesh(dt_mesh.mesh.numpy(), tuple(dt_mesh.mesh.shape), None if names is None else tuple(names))


def convert_to_xla_partition_spec(
    tensor: torch.Tensor, placements: Sequence[Placement]
) -> tuple[int | tuple[int, ...] | None, ...]:
    """For each dimension of the tensor the axes of the mesh, by number, over which ``placements`` split it.

    Raises ValueError for a placement other than Shard and Replicate, and for a dimension that does not exist.
    """
    from torch.distributed.tensor.placement_types import Replicate, Shard

    axes: list[list[int]] = [[] for _ in range(tensor.dim())]
    for axis, placement in enumerate(placements):
        if isinstance(placement, Shard):
            if not -tensor.dim() <= placement.dim < tensor.dim():
                raise ValueError(f"{placement} for a tensor of shape {list(tensor.shape)}: it has no such dimension")
            axes[placement.dim].append(axis)
        elif not isinstance(placement, Replicate):
            raise ValueError(f"{placement}: only Shard and Replicate can be asked for on xla")
    return tuple(None if not split else split[0] if len(split) == 1 else tuple(split) for split in axes)


def on_whole_mesh(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement]
) -> tuple[Mesh, tuple[Any, ...]]:
    """The mesh of all devices that ``device_mesh`` is, or is a part of, and the spec that lays the tensor out on it.

    Over a part (``mesh["tensor"]``) the tensor stays split over the other dimensions as it is: parallelize_module over
    one part and fully_shard over another split a parameter over both.
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
        kept = [axis for axis in _several(axes) if axis in others]
        joined.append((*kept, *(mine[axis] for axis in _several(entry))) or None)
    return mesh, tuple(joined)


def _several(entry: Any) -> tuple[Any, ...]:
    return () if entry is None else tuple(entry) if isinstance(entry, tuple) else (entry,)


def with_xla(func: Callable[P, R]) -> Callable[P, R]:
    """A function that switches SPMD on when it is called, if nobody has. Raises as torch_xla.runtime.use_spmd."""

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        if not runtime.is_spmd():
            runtime.use_spmd()
        return func(*args, **kwargs)

    return wrapper


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> torch.Tensor:
    """The tensor on xla, split as the placements say (default: replicated); in place where it is on xla already.

    It is a plain tensor of the whole's shape: XLA, not DTensor, splits the ops on it. A parameter stays one.
    torch.distributed.tensor.distribute_tensor calls this for a mesh of device type xla. Where the mesh is over process
    groups (no SPMD, but ``init_process_group("xla")``) it gives torch's DTensor. Raises as mark_sharding.
    """
    from torch.distributed import tensor as dtensor

    if compat.is_over_groups(device_mesh):
        with compat.as_any_device():
            return dtensor.distribute_tensor(tensor, device_mesh, placements)
    return _laid_out(tensor, device_mesh, placements)


@with_xla
def _laid_out(tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None) -> torch.Tensor:
    from torch.distributed.tensor.placement_types import Replicate

    given = tuple(placements or [Replicate()] * device_mesh.ndim)
    mesh, spec = on_whole_mesh(tensor, device_mesh, given)
    if tensor.device.type == "xla":
        return _dtensor.of_mesh(mark_sharding(tensor, mesh, spec), device_mesh, given)
    moved: torch.Tensor = ShardingSpec(mesh, spec).send(tensor.detach(), torch.device("xla"))
    if isinstance(tensor, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, tensor.requires_grad)
    return _dtensor.of_mesh(moved.requires_grad_(tensor.requires_grad), device_mesh, given)


def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, torch.nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """The module on xla, its parameters split by ``partition_fn(name, submodule, mesh)``, called for each submodule.

    ``input_fn(inputs, mesh)`` sees the positional arguments before each forward, ``output_fn(outputs, mesh)`` what it
    returns; what they return takes the place of it, None leaves it. With three parameters they get the module first.
    Raises ValueError without a mesh. A mesh over process groups gives DTensors, as in xla_distribute_tensor.
    """
    from torch.distributed import tensor as dtensor

    if device_mesh is None:
        raise ValueError("xla_distribute_module: device_mesh is needed")
    if compat.is_over_groups(device_mesh):
        with compat.as_any_device():
            return dtensor.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)
    return _distributed(module, device_mesh, partition_fn, input_fn, output_fn)


@with_xla
def _distributed(
    module: torch.nn.Module,
    device_mesh: DeviceMesh,
    partition_fn: Callable[[str, torch.nn.Module, DeviceMesh], None] | None,
    input_fn: Callable[..., Any] | None,
    output_fn: Callable[..., Any] | None,
) -> torch.nn.Module:
    module.to("xla")
    if partition_fn is not None:
        for name, submodule in module.named_modules():
            partition_fn(name, submodule, device_mesh)
    if input_fn is not None:
        see = _with_module(input_fn)
        module.register_forward_pre_hook(lambda layer, inputs: see(layer, inputs, device_mesh))
    if output_fn is not None:
        show = _with_module(output_fn)
        module.register_forward_hook(lambda layer, _, out: show(layer, _marked_with(out, device_mesh), device_mesh))
    return module


def _with_module(function: Callable[..., Any]) -> Callable[..., Any]:
    if len(inspect.signature(function).parameters) > 2:
        return function
    return lambda _, values, mesh: function(values, mesh)


def _marked_with(values: Any, mesh: DeviceMesh) -> Any:
    """The outputs, whose tensors know the mesh by the time torch's styles ask for their placements."""
    return jax.tree.map(lambda v: _dtensor.of_mesh(v, mesh) if isinstance(v, torch.Tensor) else v, values)


def auto_policy(*_: Any) -> None:
    """Raises NotImplementedError: XLA chooses the sharding of what nobody marks, parameters excepted."""
    raise NotImplementedError("auto_policy: mark the parameters; XLA chooses the sharding of everything else")
