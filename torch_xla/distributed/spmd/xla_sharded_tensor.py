"""Properties of sharded tensors: their sharding, and their shards on the devices of this process.

A sharded tensor is a plain tensor, not a wrapper. The properties belong to torch.Tensor, but a tensor without a
sharding does not have them (``hasattr`` is False). ``isinstance(t, XLAShardedTensor)`` tests for a sharding.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import EllipsisType
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids
from torch_xla._engine.execution import executor, transfers
from torch_xla._engine.parallel import spmd
from torch_xla.distributed.spmd._mesh import Mesh, get_1d_mesh, is_on_mesh, validated_sharding
from torch_xla.distributed.spmd._op_sharding import ShardingType, op_sharding_string, sharding_type_of_string


@dataclass
class XLAShard:
    """The shard of a tensor that one device holds.

    Args:
      data: a CPU tensor; if the tensor is not divisible, zero-padded to the size of the other shards.
      indices: the slices of the global tensor that the shard covers, without padding; ... for all of it.
      shard_device: the device, such as ``CPU:1``.
      replica_id: index among the devices that hold the same shard.
    """

    data: torch.Tensor
    indices: EllipsisType | list[slice]
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The data without padding. Can be set."""
        return self.data if isinstance(self.indices, EllipsisType) else self.data[self._kept()]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        self.data[... if isinstance(self.indices, EllipsisType) else self._kept()] = t

    def _kept(self) -> tuple[slice, ...]:
        assert not isinstance(self.indices, EllipsisType)
        return tuple(slice(0, part.stop - part.start) for part in self.indices)


def get_sharding(t: torch.Tensor) -> NamedSharding | None:
    """Return the NamedSharding of a tensor; None if it is not decided yet (neither marked nor computed).

    Its mesh has the devices in the order of their numbers; the sharding has the permutation of a mesh in another order.

    Args:
      t: an xla tensor.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> xr.use_spmd()
      >>> x = xs.mark_sharding(torch.ones(8, 2, device="xla"), xs.get_1d_mesh("data"), ("data", None))
      >>> xs.get_sharding(x).shard_shape(tuple(x.shape))
      (2, 2)
    """
    (node,) = recorder.bindings().nodes_of([t]) or (None,)
    found = None if node is None else sharding_ids.sharding_from_id(node.sharding)
    return found if isinstance(found, NamedSharding) else None


def is_sharded(t: object) -> bool:
    """Return whether a tensor has a sharding over a mesh, including full replication."""
    return isinstance(t, torch.Tensor) and is_on_mesh(t) and get_sharding(t) is not None


def sharding_spec(t: torch.Tensor) -> str:
    """Return XLA's text of a sharding, ``{devices=[2,1,2]0,1,2,3 last_tile_dim_replicate}``; '' without a sharding.

    The numbers are device numbers: for each shard in order, the devices that hold it.
    """
    found = get_sharding(t)
    return "" if found is None else op_sharding_string(found, t.dim())


def sharding_type(t: torch.Tensor) -> ShardingType | None:
    """Return a tensor's sharding type; None without a sharding. PARTIAL: sharded, with several devices per shard."""
    spec = sharding_spec(t)
    return sharding_type_of_string(spec) if spec else None


@dataclass(frozen=True)
class LocalPart:
    """The shard on a device of this process: its offset, and its sizes without padding."""

    device: jax.Device
    number: int  # of the device, in the mesh
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    replica_id: int
    read_all: Callable[[], torch.Tensor]

    @property
    def filled(self) -> bool:
        """Return whether it has elements; the last devices may have none if the tensor is not divisible."""
        return 0 not in self.sizes

    def read(self) -> torch.Tensor:
        """Return a CPU tensor with its values; waits for them."""
        return self.read_all()[tuple(slice(size) for size in self.sizes)]


def local_parts(t: torch.Tensor, values: bool = True) -> list[LocalPart]:
    """Return the shards on this process's devices, in device order. Raises ValueError without a sharding.

    With ``values`` the tensor is computed if necessary, and the shards can be read.
    """
    shape = tuple(t.shape)
    buffer = _buffer(t) if values else None
    found = get_sharding(t)
    if found is None:
        raise ValueError(f"a tensor of shape {list(shape)} has no sharding; mark it first")
    places = _shard_indices(found, shape)
    held = {} if buffer is None else {part.device: part.data for part in buffer.addressable_shards}
    return [
        LocalPart(
            device,
            number,
            tuple(part.start for part in index),
            tuple(part.stop - part.start for part in index),
            replica,
            functools.partial(_read, held.get(device), t.dtype),
        )
        for number, (device, index, replica) in enumerate(places)
        if device.process_index == jax.process_index()
    ]


def _read(part: jax.Array | None, dtype: torch.dtype) -> torch.Tensor:
    assert part is not None
    return transfers.download_shard(part, dtype)


def _shard_indices(found: NamedSharding, shape: tuple[int, ...]) -> list[tuple[jax.Device, list[slice], int]]:
    """Return, for each device in order, the slices of its shard, and how many devices before it hold the same."""
    indices = found.devices_indices_map(sharding_ids.padded_shape(shape, found))
    copies: dict[str, int] = {}
    out = []
    for device in spmd.mesh_devices():
        index = _indices(indices[device], shape)
        copies[str(index)] = copies.get(str(index), -1) + 1
        out.append((device, index, copies[str(index)]))
    return out


def local_shards(t: torch.Tensor) -> list[XLAShard]:
    """Return the shards on this process's devices, in device order. Waits for the value."""
    parts = local_parts(t)
    found = get_sharding(t)
    split = found is not None and not found.is_fully_replicated
    return [
        XLAShard(
            part.read_all(),
            [slice(at, at + size, 1) for at, size in zip(part.offsets, part.sizes, strict=True)] if split else ...,
            f"{part.device.platform.upper()}:{part.number}",
            part.replica_id,
        )
        for part in parts
    ]


def _buffer(t: torch.Tensor) -> jax.Array:
    (node,) = recorder.bindings().nodes_of([t.detach()])
    executor.materialize([node], 0)
    buffer: jax.Array = node.buffer
    return buffer


def _indices(index: Sequence[slice], shape: tuple[int, ...]) -> list[slice]:
    return [
        slice(min(part.start or 0, size), size if part.stop is None else min(part.stop, size), 1)
        for part, size in zip(index, shape, strict=True)
    ]


def load_local_shards_(t: torch.Tensor, shards: Sequence[XLAShard]) -> None:
    """Write the tensor's shards on this process's devices from the shards' data; no device holds the full tensor.

    Args:
      t: a sharded tensor.
      shards: one per device, in the order of ``local_shards``; their data may be padded or not.

    Raises:
      ValueError: the tensor has no sharding, the number of shards differs, or a shape does not match.
    """
    places, found = local_parts(t, values=False), get_sharding(t)
    assert found is not None
    if len(shards) != len(places):
        raise ValueError(f"load_local_shards_: got {len(shards)} shards for {len(places)} devices of this process")
    whole = sharding_ids.padded_shape(tuple(t.shape), found)
    parts = []
    for number, (shard, place) in enumerate(zip(shards, places, strict=True)):
        if tuple(shard.data.shape) not in (found.shard_shape(whole), place.sizes):
            raise ValueError(
                f"load_local_shards_: shard {number} has shape {list(shard.data.shape)}, expected {list(place.sizes)}"
                + ("" if place.sizes == found.shard_shape(whole) else f", or {list(found.shard_shape(whole))} padded")
            )
        parts.append((shard.data[tuple(slice(size) for size in place.sizes)], place.device))
    recorder.bindings().with_execution_lock(0, _write, t, parts, whole, found)


def _write(t: torch.Tensor, parts: Any, whole: tuple[int, ...], found: NamedSharding) -> None:
    with torch.no_grad():
        array = transfers.upload_shards(parts, t.dtype, whole, found)
        recorder.bindings().reshard(t.detach(), sharding_ids.sharding_id(found, t.dim()), array)


def annotate_custom_sharding(t: torch.Tensor, mesh: Mesh, partition_spec: Sequence[Any]) -> torch.Tensor:
    """Mark like mark_sharding, but without moving a value now: the next program that uses the tensor reshards it.

    Args:
      t: an xla tensor.
      mesh, partition_spec: as for [mark_sharding][torch_xla.distributed.spmd.mark_sharding].

    Returns:
      The tensor itself.
    """
    sharding = validated_sharding("annotate_custom_sharding", t, mesh, partition_spec)
    with torch.no_grad():
        recorder.bindings().with_execution_lock(
            0, recorder.bindings().reshard, t, sharding_ids.sharding_id(sharding, t.dim())
        )
    return t


def wrap_as_sharded_tensor(t: torch.Tensor, mesh_shape: Any = None, partition_spec: Any = None) -> torch.Tensor:
    """Return the tensor, replicated if it has no sharding; sharded tensors need no wrapper.

    Args:
      t: an xla tensor.
      mesh_shape, partition_spec: accepted for compatibility.
    """
    if not is_sharded(t):
        annotate_custom_sharding(t, get_1d_mesh(), (None,) * t.dim())
    return t


class _ShardedTensorMeta(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return is_sharded(instance)


def _sharded_property(answer: Callable[[torch.Tensor], Any], name: str) -> property:
    def get(t: torch.Tensor) -> Any:
        if not is_sharded(t):
            raise AttributeError(f"{type(t).__name__!r} object has no attribute {name!r}: it has no sharding")
        return answer(t)

    return property(get, doc=answer.__doc__)


def _full_tensor(t: torch.Tensor) -> torch.Tensor:
    """Return the tensor itself, which has the global shape and values."""
    return t


def _loader(t: torch.Tensor) -> Callable[[Sequence[XLAShard]], None]:
    """Return the method that writes the local shards; see load_local_shards_."""
    return lambda shards: load_local_shards_(t, shards)


def _no_op(t: torch.Tensor) -> Callable[[], None]:
    """Return a no-op: the sharding is read from the tensor each time."""
    return lambda: None


class XLAShardedTensor(metaclass=_ShardedTensorMeta):
    """Type of tensors with a sharding, for ``isinstance``, with the additional properties of such tensors.

    ``XLAShardedTensor(t)`` is ``t``, replicated if it has no sharding; use mark_sharding to shard a tensor.
    """

    global_tensor = property(_full_tensor)
    local_shards = property(local_shards)
    sharding_spec = property(sharding_spec)
    sharding_type = property(sharding_type)

    def __new__(cls, elem: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:  # type: ignore[misc]
        return wrap_as_sharded_tensor(elem)

    def load_local_shards_(self: torch.Tensor, shards: Sequence[XLAShard]) -> None:  # type: ignore[misc]
        """See load_local_shards_ of this module.

        Args:
          shards: the new shards of this process, in the order of ``local_shards``.
        """
        load_local_shards_(self, shards)

    def invalidate_spec_cache(self: torch.Tensor) -> None:  # type: ignore[misc]
        """Do nothing: the sharding is read from the tensor each time."""


def register_sharded_properties() -> None:
    """Add the properties of sharded tensors to torch.Tensor; once."""
    answers: dict[str, Callable[[torch.Tensor], Any]] = {
        "global_tensor": _full_tensor,
        "local_shards": local_shards,
        "load_local_shards_": _loader,
        "sharding_spec": sharding_spec,
        "sharding_type": sharding_type,
        "invalidate_spec_cache": _no_op,
    }
    for name, answer in answers.items():
        setattr(torch.Tensor, name, _sharded_property(answer, name))
