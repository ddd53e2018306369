"""DTensor's functions for xla meshes: DeviceMesh and placements, as called by torch.distributed.tensor."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import jax
import torch

from torch_xla import runtime
from torch_xla._engine.compat import distributed as compat
from torch_xla.distributed.spmd import _dtensor
from torch_xla.distributed.spmd._device_mesh import (  # upstream has the first two here
    convert_to_xla_mesh,  # noqa: F401
    convert_to_xla_partition_spec,  # noqa: F401
    to_global_mesh,
)
from torch_xla.distributed.spmd.xla_sharding import ShardingSpec, mark_sharding

if TYPE_CHECKING:  # importing DTensor takes as long as importing torch_xla; only callers of these functions need it
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor.placement_types import Placement

P = ParamSpec("P")
R = TypeVar("R")


def with_xla(func: Callable[P, R]) -> Callable[P, R]:
    """Wrap a function to enable SPMD when it is called, if it is not enabled.

    Args:
      func: the function.

    Raises:
      RuntimeError (by a call): tensors exist on devices other than ``xla:0``.
    """

    @functools.wraps(func)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        runtime.use_spmd()
        return func(*args, **kwargs)

    return wrapper


def xla_distribute_tensor(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None = None
) -> torch.Tensor:
    """Move the tensor to xla, sharded by the placements (default: replicated); in place if it is on xla.

    The result is a plain tensor of the global shape: XLA, not DTensor, partitions operations on it. A parameter stays a
    parameter. torch.distributed.tensor.distribute_tensor calls this function for a mesh of device type xla. If the mesh
    is over process groups (no SPMD, but ``init_process_group("xla")``), the result is torch's DTensor.

    Args:
      tensor: a tensor of any shape and dtype.
      device_mesh: a mesh of device type xla.
      placements: one per dimension of the mesh.

    Raises:
      As mark_sharding.
    """
    from torch.distributed import tensor as dtensor

    if compat.has_process_groups(device_mesh):
        with compat.mask_device_type():
            return dtensor.distribute_tensor(tensor, device_mesh, placements)
    return _apply_placements(tensor, device_mesh, placements)


@with_xla
def _apply_placements(
    tensor: torch.Tensor, device_mesh: DeviceMesh, placements: Sequence[Placement] | None
) -> torch.Tensor:
    from torch.distributed.tensor.placement_types import Replicate

    given = tuple(placements or [Replicate()] * device_mesh.ndim)
    mesh, spec = to_global_mesh(tensor, device_mesh, given)
    if tensor.device.type == "xla":
        return _dtensor.attach_mesh(mark_sharding(tensor, mesh, spec), device_mesh, given)
    moved: torch.Tensor = ShardingSpec(mesh, spec).send(tensor.detach(), torch.device("xla"))
    if isinstance(tensor, torch.nn.Parameter):
        moved = torch.nn.Parameter(moved, tensor.requires_grad)
    return _dtensor.attach_mesh(moved.requires_grad_(tensor.requires_grad), device_mesh, given)


def xla_distribute_module(
    module: torch.nn.Module,
    device_mesh: DeviceMesh | None = None,
    partition_fn: Callable[[str, torch.nn.Module, DeviceMesh], None] | None = None,
    input_fn: Callable[..., Any] | None = None,
    output_fn: Callable[..., Any] | None = None,
) -> torch.nn.Module:
    """Move the module to xla and shard its parameters by ``partition_fn(name, submodule, mesh)``.

    A mesh over process groups gives DTensors, as in xla_distribute_tensor.

    Args:
      module: the module.
      device_mesh: a mesh of device type xla.
      partition_fn: called for each submodule.
      input_fn: ``input_fn(inputs, mesh)`` is called with the positional arguments before each forward; its result
        replaces them unless it is None. With three parameters it gets the module first.
      output_fn: ``output_fn(outputs, mesh)`` likewise for the outputs.

    Raises:
      ValueError: there is no mesh.
    """
    from torch.distributed import tensor as dtensor

    if device_mesh is None:
        raise ValueError("xla_distribute_module: device_mesh is required")
    if compat.has_process_groups(device_mesh):
        with compat.mask_device_type():
            return dtensor.distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)
    return _distribute_module(module, device_mesh, partition_fn, input_fn, output_fn)


@with_xla
def _distribute_module(
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
        module.register_forward_hook(
            lambda layer, _, out: show(layer, _annotate_outputs(out, device_mesh), device_mesh)
        )
    return module


def _with_module(function: Callable[..., Any]) -> Callable[..., Any]:
    if len(inspect.signature(function).parameters) > 2:
        return function
    return lambda _, values, mesh: function(values, mesh)


def _annotate_outputs(values: Any, mesh: DeviceMesh) -> Any:
    """Attach the mesh to the output tensors, so that torch's parallel styles can read their placements."""
    return jax.tree.map(lambda v: _dtensor.attach_mesh(v, mesh) if isinstance(v, torch.Tensor) else v, values)


def auto_policy(*_: Any) -> None:
    """Raise NotImplementedError: XLA chooses the sharding of unannotated tensors, except parameters."""
    raise NotImplementedError("auto_policy: mark the parameters; XLA chooses the sharding of the other tensors")
