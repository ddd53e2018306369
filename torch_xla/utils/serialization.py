"""Files for data too large to be copied to the CPU at once: each tensor has a file of its own.

save(data, "x.pt")     writes x.pt (the data with a TensorReference in the place of each tensor)
                       and x.pt.tensors/tensor_0.pt, tensor_1.pt, ...

x.pt is written last, and says which tensors are its own: a process that dies before leaves what an earlier save wrote.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla.core import transfers


@dataclass(frozen=True)
class TensorReference:
    """Stands in the file for the tensor in ``tensor_<tid>.pt``."""

    tid: int


def _folder(path: str | Path) -> Path:
    return Path(f"{path}.tensors")


def _file(path: str | Path, tid: int) -> Path:
    return _folder(path) / f"tensor_{tid}.pt"


def save(data: Any, path: str | Path, master_only: bool = True, global_master: bool = False) -> None:
    """Saves ``data``, copying one xla tensor to the CPU at a time. ``master_only``, ``global_master``: as in xm.save.

    Tensors that are one (tied weights in a state_dict) are in one file. Replaces what an earlier save left, once all is
    written. All replicas must call it, and return together. RuntimeError where another one could not write.
    """
    write = transfers.is_writer(master_only, global_master)
    with transfers.barrier_scope("serialization.save", str(path)):
        _save(data, path, write)


def _save(data: Any, path: str | Path, write: bool) -> None:
    folder = _folder(path)
    if write:
        folder.mkdir(parents=True, exist_ok=True)
    earlier = {file for file in folder.iterdir() if file.is_file()} if write else set()
    first = 1 + max((_tid(file) for file in earlier), default=-1)

    def convert(tensors: list[torch.Tensor]) -> list[Any]:
        transfers._compute([t for t in tensors if t.device.type == "xla"])
        numbers: dict[int, int] = {}
        results: list[Any] = []
        for tensor in tensors:
            identity = recorder.bindings().tensor_id(tensor) if tensor.device.type == "xla" else -id(tensor)
            tid = numbers.setdefault(identity, first + len(numbers))
            if write and not _file(path, tid).exists():
                transfers.atomic_torch_save(tensor.detach().cpu(), _file(path, tid))
            results.append(TensorReference(tid) if write else tensor)
        return results

    references = transfers.ToXlaTensorArena(convert, lambda tensor: True).transform(data, in_place=False)
    if write:
        transfers.atomic_torch_save(references, path)
        for file in earlier:
            file.unlink(missing_ok=True)


def _tid(file: Path) -> int:
    """The number of a tensor's file, -1 for a file of another name."""
    found = re.fullmatch(r"tensor_(\d+)\.pt", file.name)
    return int(found[1]) if found else -1


def load(path: str | Path) -> Any:
    """What save() wrote, with all tensors on the CPU. FileNotFoundError where a file of a tensor is missing."""
    tensors: dict[int, torch.Tensor] = {}

    def restore(value: Any) -> Any:
        if isinstance(value, TensorReference):
            if value.tid not in tensors:
                tensors[value.tid] = torch.load(_file(path, value.tid), map_location="cpu")
            return tensors[value.tid]
        if isinstance(value, dict):
            for key, item in value.items():
                value[key] = restore(item)
            return value
        if isinstance(value, list):
            value[:] = [restore(item) for item in value]
            return value
        if isinstance(value, (tuple, set, frozenset)):
            items = [restore(item) for item in value]
            return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        return value

    with torch.serialization.safe_globals([TensorReference]):
        return restore(torch.load(path))
