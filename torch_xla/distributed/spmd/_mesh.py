"""Meshes: the devices of a job as a grid with named axes, over which the dimensions of tensors are sharded."""

from __future__ import annotations

import ast
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jax.experimental import mesh_utils
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as JaxSpec

from torch_xla._engine.base import user_frames
from torch_xla._engine.device import devices
from torch_xla._engine.job import replicas
from torch_xla._engine.parallel import spmd
from torch_xla.distributed.spmd._op_sharding import ShardingType, op_sharding_string, sharding_type_of_string

Axis = str | int
#: For each dimension of a tensor: the mesh axis over which it is sharded, a tuple of axes, or None (unsharded).
PartitionSpec = tuple[Axis | tuple[Axis, ...] | None, ...]


class MeshError(ValueError, AssertionError):
    """Invalid mesh or partition spec; also an AssertionError, which scripts for upstream expect."""


class Mesh:
    """A grid of devices.

    Args:
      device_ids: the numbers of all devices of the job, from 0 over all processes, each once, in any order; an array of
        any shape. They fill the mesh row by row.
      mesh_shape: the sizes of the grid's axes.
      axis_names: a unique name for each axis; without them axes are identified by position.

    Raises:
      MeshError: the arguments do not match, or the job has fewer devices (checked at first use before use_spmd(), and
        where the mesh is smaller).

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.Mesh(range(4), (2, 2), ("data", "model"))
      >>> mesh.shape()
      {'data': 2, 'model': 2}
      >>> mesh.get_logical_mesh().tolist()
      [[0, 1], [2, 3]]
    """

    def __init__(
        self,
        device_ids: np.ndarray | Sequence[int],
        mesh_shape: tuple[int, ...],
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        self.device_ids = np.asarray(list(device_ids) if isinstance(device_ids, range) else device_ids)
        self.mesh_shape = tuple(int(size) for size in mesh_shape)
        self.axis_names = None if axis_names is None else tuple(axis_names)
        ids = self.device_ids.ravel().tolist()
        if len(ids) != math.prod(self.mesh_shape):
            raise MeshError(f"Mesh: {len(ids)} devices do not fill a mesh of shape {list(self.mesh_shape)}")
        if sorted(ids) != list(range(len(ids))):
            raise MeshError(f"Mesh: device_ids must be 0 to {len(ids) - 1}, each once; got {ids}")
        names = self.axis_names
        if names is not None and (len(names) != len(self.mesh_shape) or len(set(names)) < len(names)):
            raise MeshError(f"Mesh: axis_names={names} must be {len(self.mesh_shape)} different names")
        _check_devices_exist(self)

    @classmethod
    def from_str(cls, mesh_str: str) -> Mesh | None:
        """Return the mesh of the text ``str(mesh)``; None for another text.

        Args:
          mesh_str: the text.
        """
        try:
            kind, fields = mesh_str.split(" ", 1)
            ids, shape, names = ast.literal_eval(fields)
            return cls(ids, shape, names) if kind == "Mesh" else None
        except (ValueError, SyntaxError):
            return None

    def __str__(self) -> str:
        return f"Mesh {(self.device_ids.ravel().tolist(), self.mesh_shape, self.axis_names)}"

    def __repr__(self) -> str:
        return (
            f"Mesh(device_ids={self.device_ids.tolist()}, mesh_shape={self.mesh_shape}, axis_names={self.axis_names})"
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def size(self) -> int:
        """Return the number of devices."""
        return math.prod(self.mesh_shape)

    def shape(self) -> dict[str, int]:
        """Return the size of each axis by name, in order."""
        return dict(zip(self._names(), self.mesh_shape, strict=True))

    def get_logical_mesh(self) -> np.ndarray:
        """Return the device numbers as an array of the mesh's shape."""
        return self.device_ids.reshape(self.mesh_shape)

    def get_axis_name_idx(self, name: str) -> int | None:
        """Return the position of an axis by name; None if it does not exist.

        Args:
          name: the name of the axis.
        """
        return self._names().index(name) if name in self._names() else None

    def get_jax_mesh(self) -> JaxMesh:
        """Return the mesh as a jax.sharding.Mesh. Starts the backend.

        Raises:
          MeshError: the job has other devices.
        """
        return _jax_mesh(self)

    def sharding(self, partition_spec: Sequence[Any], rank: int) -> NamedSharding:
        """Return the jax.sharding.NamedSharding of a tensor with ``rank`` dimensions under a partition spec.

        Args:
          partition_spec: an axis (name or number), a tuple of axes or None for each dimension of the tensor.
          rank: the number of dimensions of the tensor.

        Raises:
          MeshError: a spec of another length, an unknown axis, or an axis that is used twice.
        """
        if len(partition_spec) != rank:
            raise MeshError(
                f"partition_spec {tuple(partition_spec)} has {len(partition_spec)} entries for {rank} dimensions"
            )
        axes = [tuple(map(self._name, _as_axes(entry))) for entry in partition_spec]
        used = [name for names in axes for name in names]
        if len(set(used)) < len(used):
            raise MeshError(f"partition_spec {tuple(partition_spec)} shards two dimensions over one axis")
        return spmd.mesh_sharding(self.get_jax_mesh(), JaxSpec(*(names or None for names in axes)))

    def get_op_sharding(self, partition_spec: Sequence[Any]) -> OpSharding:
        """Return the sharding of tensors of this rank under a partition spec. Raises as ``sharding``.

        Args:
          partition_spec: an axis (name or number), a tuple of axes or None for each dimension of the tensor.
        """
        return OpSharding(self, tuple(partition_spec), self.sharding(partition_spec, len(partition_spec)))

    def _names(self) -> tuple[str, ...]:
        return self.axis_names or tuple(f"axis{i}" for i in range(len(self.mesh_shape)))

    def _name(self, axis: Axis) -> str:
        if isinstance(axis, str) and axis in self._names():
            return axis
        if isinstance(axis, int) and 0 <= axis < len(self.mesh_shape):
            return self._names()[axis]
        raise MeshError(f"partition_spec: {axis!r} is not an axis of {self!r}")


@dataclass(frozen=True)
class OpSharding:
    """Sharding of tensors of one rank over a mesh; ``str`` returns XLA's text format."""

    mesh: Mesh
    partition_spec: PartitionSpec
    sharding: NamedSharding

    @property
    def type(self) -> ShardingType:
        """The sharding type."""
        return sharding_type_of_string(str(self))

    def __str__(self) -> str:
        return op_sharding_string(self.sharding, len(self.partition_spec))


def _as_axes(entry: Any) -> tuple[Axis, ...]:
    return () if entry is None else tuple(entry) if isinstance(entry, (tuple, list)) else (entry,)


def _check_devices_exist(mesh: Mesh) -> None:
    # Without SPMD this process may be about to fork, so the backend must not start here.
    if replicas.is_spmd() and mesh.size() > len(spmd.mesh_devices()):
        raise MeshError(_size_mismatch(mesh))


def _size_mismatch(mesh: Mesh) -> str:
    more = "; on the CPU set CPU_NUM_DEVICES before the first xla tensor" if devices.device_type() == "CPU" else ""
    count = len(spmd.mesh_devices())
    return (
        f"{mesh!r} has {mesh.size()} devices, but the job has {count} device{'s'[: count != 1]}, and a mesh must use "
        f"all of them{more}"
    )


@functools.cache
def _jax_mesh(mesh: Mesh) -> JaxMesh:
    if not replicas.is_spmd():
        raise RuntimeError(
            "a mesh requires SPMD: call torch_xla.runtime.use_spmd() before creating the first xla tensor"
        )
    all_devices = np.array(spmd.mesh_devices())
    if mesh.size() != len(all_devices):
        raise MeshError(_size_mismatch(mesh))
    return JaxMesh(all_devices[mesh.get_logical_mesh()], mesh._names())


class HybridMesh(Mesh):
    """A mesh over several TPU slices (or hosts), with the devices ordered by network speed.

    Args:
      ici_mesh_shape: the sizes of the axes within a slice, over the fast network (ICI).
      dcn_mesh_shape: the sizes of the same axes across slices, over the slow network (DCN); default: one slice.
      axis_names: as in [Mesh][torch_xla.distributed.spmd.Mesh].
    """

    def __init__(
        self,
        *,
        ici_mesh_shape: tuple[int, ...],
        dcn_mesh_shape: tuple[int, ...] | None = None,
        axis_names: tuple[str, ...] | None = None,
    ) -> None:
        all_devices = spmd.mesh_devices()
        across = dcn_mesh_shape or (1,) * len(ici_mesh_shape)
        shape = tuple(within * slices for within, slices in zip(ici_mesh_shape, across, strict=True))
        if math.prod(across) > 1:
            grid = mesh_utils.create_hybrid_device_mesh(ici_mesh_shape, across, devices=all_devices)
        else:
            grid = mesh_utils.create_device_mesh(ici_mesh_shape, devices=all_devices)
        numbers = {device: number for number, device in enumerate(all_devices)}
        super().__init__([numbers[device] for device in grid.ravel()], shape, axis_names)


def get_1d_mesh(axis_name: str | None = None) -> Mesh:
    """Return a mesh of all devices of the job along one axis. Starts the backend.

    Args:
      axis_name: name of the axis; None: identify the axis by its position, 0.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> xs.get_1d_mesh("data").shape()
      {'data': 4}
    """
    count = len(spmd.mesh_devices())
    return Mesh(range(count), (count,), None if axis_name is None else (axis_name,))


_global: Mesh | None = None


def set_global_mesh(mesh: Mesh) -> None:
    """Set the mesh that get_global_mesh returns.

    Args:
      mesh: the default mesh of enable_manual_sharding, flash_attention and SpmdFullyShardedDataParallel.

    Examples:
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> xs.set_global_mesh(xs.get_1d_mesh("fsdp"))
      >>> xs.get_global_mesh().axis_names
      ('fsdp',)
    """
    global _global
    _global = mesh


def get_global_mesh() -> Mesh | None:
    """Return the mesh that was last passed to set_global_mesh; None if there is none.

    Examples:
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> mesh = xs.get_1d_mesh("data")
      >>> xs.set_global_mesh(mesh)
      >>> xs.get_global_mesh() == mesh
      True
    """
    return _global


def is_on_mesh(t: torch.Tensor) -> bool:
    """Whether a tensor is on ``xla:0`` with SPMD, which stands for all devices of the job."""
    return t.device.type == "xla" and replicas.is_spmd()


def is_spmd_mesh(device_mesh: Any) -> bool:
    """Whether a DeviceMesh, or None, is one of xla with SPMD: its tensors are those of all devices."""
    return device_mesh is not None and device_mesh.device_type == "xla" and replicas.is_spmd()


def is_for_xla(device_mesh: Any) -> bool:
    """Whether what is sharded over a DeviceMesh goes to xla; with SPMD also where none is given."""
    return replicas.is_spmd() if device_mesh is None else bool(device_mesh.device_type == "xla")


def validated_sharding(
    op: str, t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any], later: bool = False
) -> NamedSharding:
    """Return the sharding that the arguments of ``op`` specify. Raises as mark_sharding."""
    where = f"{op} of a tensor of shape {list(t.shape)} (at {user_frames.user_line()})"
    if not replicas.is_spmd():
        raise RuntimeError(f"{where}: call torch_xla.runtime.use_spmd() before the first xla tensor")
    if t.device.type != "xla" and not later:
        raise ValueError(f"{where}: the tensor is on {t.device}; move it to xla first")
    try:
        sharding = mesh.sharding(partition_spec, t.dim())
    except MeshError as error:
        raise MeshError(f"{where}: {error}") from None
    return sharding
