"""Load Hugging Face's safetensors files into shards: read only the bytes that this process's devices hold."""

from __future__ import annotations

import json
import math
import mmap
import os
from collections.abc import Mapping
from typing import Any

import torch

from torch_xla.experimental.distributed_checkpoint._checksummed_storage import CheckpointError
from torch_xla.experimental.distributed_checkpoint._shards import TensorShards, is_split, shards_to_read
from torch_xla.experimental.distributed_checkpoint.planners import load_parts_

_DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip


class _File:
    """A memory-mapped safetensors file: a tensor's pages are read on access."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
            length = int.from_bytes(self._data[:8], "little")
            self._start = 8 + length
            self.header: dict[str, Any] = json.loads(self._data[8 : self._start])
            self.header.pop("__metadata__", None)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read as a safetensors file: {error}") from error
        end = max((entry["data_offsets"][1] for entry in self.header.values()), default=0)
        if self._start + end > len(self._data):
            raise CheckpointError(
                f"{path} is corrupt: it has {len(self._data)} bytes, but its header requires {self._start + end}"
            )

    def tensor(self, name: str) -> torch.Tensor:
        """Return a CPU tensor over the file's bytes."""
        entry = self.header[name]
        dtype = _DTYPES.get(entry["dtype"])
        if dtype is None:
            raise CheckpointError(f"{self.path}: torch does not support the dtype {entry['dtype']} of {name}")
        count = math.prod(entry["shape"])
        if count == 0:
            return torch.empty(entry["shape"], dtype=dtype)
        begin = self._start + entry["data_offsets"][0]
        return torch.frombuffer(self._data, dtype=dtype, count=count, offset=begin).view(entry["shape"])


def _files(path: str) -> dict[str, _File]:
    """Return the file of each tensor, by name."""
    if os.path.isfile(path):
        paths = [path]
    else:
        index = os.path.join(path, "model.safetensors.index.json")
        if os.path.exists(index):
            with open(index) as file:
                names = sorted(set(json.load(file)["weight_map"].values()))
        else:
            names = sorted(name for name in os.listdir(path) if name.endswith(".safetensors"))
        paths = [os.path.join(path, name) for name in names]
    if not paths:
        raise CheckpointError(f"{path} has no safetensors file")
    return {name: file for file in map(_File, paths) for name in file.header}


def load_safetensors(state_dict: Mapping[str, torch.Tensor], path: str, strict: bool = True) -> list[str]:
    """Load tensors by name from a safetensors file, or a folder of files as on Hugging Face's hub, in place.

    The bytes of a sharded tensor are sent to the devices shard by shard: neither a device nor the host holds the full
    tensor. Values are converted to the tensor's dtype. With ``model.state_dict()`` as the state dict, this initializes
    a model that was created on meta, sharded, and allocated by ``to_empty(device="xla")``.

    Args:
      state_dict: tensors by name; updated in place.
      path: a file or a folder.
      strict: raise KeyError if the files lack a name.

    Returns:
      The names that the files lack.

    Raises:
      KeyError: a name is missing, with ``strict``.
      ValueError: a tensor has another shape.
      CheckpointError: a file is corrupt.
    """
    files = _files(os.fspath(path))
    missing = [name for name in state_dict if name not in files]
    if missing and strict:
        raise KeyError(f"load_safetensors: {path} lacks {', '.join(missing)}")
    for name, target in state_dict.items():
        if name in files:
            _load(name, target, files[name].tensor(name))
    return missing


def _load(name: str, target: torch.Tensor, value: torch.Tensor) -> None:
    if target.shape != value.shape:
        raise ValueError(f"load_safetensors: {name} has shape {list(value.shape)}, expected {list(target.shape)}")
    if not is_split(target):
        with torch.no_grad():
            target.copy_(value)
        return
    room = shards_to_read(target)
    parts: dict[tuple[int, ...], tuple[tuple[int, ...], torch.Tensor]] = {}
    for chunk in room.__create_chunk_list__():
        at, sizes = tuple(chunk.offsets), tuple(chunk.sizes)
        index = tuple(slice(start, start + size) for start, size in zip(at, sizes, strict=True))
        parts[at] = (sizes, value[index].to(target.dtype))
    load_parts_(target, TensorShards(target.shape, target.dtype, parts))
