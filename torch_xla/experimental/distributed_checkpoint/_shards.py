"""A sharded tensor as torch.distributed.checkpoint sees it: a global size, and the shards of this process."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import TensorWriteData, WriteItem, WriteItemType

from torch_xla.distributed.spmd.xla_sharded_tensor import LocalPart, get_sharding, local_parts

Offsets = tuple[int, ...]


class TensorShards:
    """Shards of a tensor by offset, on the CPU or still on the devices.

    Implements the protocol by which torch.distributed.checkpoint queries distributed tensors for write items, read
    chunks and the shards themselves.
    """

    def __init__(self, shape: torch.Size, dtype: torch.dtype, parts: Mapping[Offsets, tuple[Offsets, Any]]) -> None:
        self.shape, self.dtype, self._parts = shape, dtype, parts

    def size(self) -> torch.Size:
        """Return the global shape."""
        return self.shape

    def __create_chunk_list__(self) -> list[ChunkStorageMetadata]:
        return [ChunkStorageMetadata(torch.Size(at), torch.Size(sizes)) for at, (sizes, _) in self._parts.items()]

    def __create_write_items__(self, fqn: str, _: object) -> list[WriteItem]:
        properties = TensorProperties(dtype=self.dtype)
        return [
            WriteItem(
                MetadataIndex(fqn, chunk.offsets),
                WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=properties, size=self.shape),
            )
            for chunk in self.__create_chunk_list__()
        ]

    def __get_tensor_shard__(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None
        return self.part(tuple(index.offset))

    def part(self, at: Offsets) -> torch.Tensor:
        """Return the shard at these offsets, on the CPU."""
        value = self._parts[at][1]
        found: torch.Tensor = value() if callable(value) else value
        return found


def is_split(t: Any) -> bool:
    """Return whether a value is an xla tensor that is sharded over devices (not only replicated)."""
    if not isinstance(t, torch.Tensor) or t.device.type != "xla":
        return False
    found = get_sharding(t)
    return found is not None and not found.is_fully_replicated


def shards_to_write(t: torch.Tensor, now: bool) -> TensorShards:
    """Return the shards that this process writes, each from one of its holders; read ``now``, or on demand."""
    held = {part.offsets: part for part in local_parts(t) if part.replica_id == 0 and part.filled}
    return TensorShards(
        t.shape, t.dtype, {at: (part.sizes, part.read() if now else part.read) for at, part in held.items()}
    )


def shards_to_read(t: torch.Tensor) -> TensorShards:
    """Allocate CPU buffers for the distinct shards of a tensor on this process's devices."""
    held = {part.offsets: part.sizes for part in local_parts(t, values=False) if part.filled}
    return TensorShards(
        t.shape, t.dtype, {at: (sizes, torch.empty(sizes, dtype=t.dtype)) for at, sizes in held.items()}
    )


def map_tensors(value: Any, change: Callable[[torch.Tensor], Any]) -> Any:
    """Apply a function to the tensors in nested dicts, lists and tuples; other values are unchanged."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(item, change) for key, item in value.items()}
    if isinstance(value, (list, tuple)) and type(value) in (list, tuple):
        return type(value)(map_tensors(item, change) for item in value)
    return value


class Pickled:
    """A value that is not a tensor, pickled as in a checkpoint, so that later changes do not affect it."""

    def __init__(self, value: Any) -> None:
        self.data = io.BytesIO()
        torch.save(value, self.data)  # as SPMDSavePlanner does: the same file and the same errors


#: Types of immutable values.
_IMMUTABLE = (type(None), bool, int, float, complex, str, bytes)


def copy_to_host(value: Any) -> Any:
    """Copy the part of a nested state dict that this process writes to the CPU.

    Descends into the containers that torch.distributed.checkpoint flattens (mappings, and lists with tensors or
    mappings in them). Any other object (arrays, tuples, deques, dataclasses, ...), which it saves as one item, is
    pickled here.
    """
    if isinstance(value, torch.Tensor):
        return shards_to_write(value, now=True) if is_split(value) else value.detach().to("cpu", copy=True)
    if isinstance(value, Mapping):
        return {key: copy_to_host(item) for key, item in value.items()}
    if isinstance(value, list) and _has_items_to_visit(value):
        return [copy_to_host(item) for item in value]
    if type(value) in _IMMUTABLE or hasattr(value, "__create_write_items__"):
        return value
    return Pickled(value)


def _has_items_to_visit(value: list[Any]) -> bool:
    return any(
        isinstance(item, (torch.Tensor, Mapping)) or (isinstance(item, list) and _has_items_to_visit(item))
        for item in value
    )


__all__ = [
    "LocalPart",
    "Pickled",
    "TensorShards",
    "copy_to_host",
    "is_split",
    "map_tensors",
    "shards_to_read",
    "shards_to_write",
]
