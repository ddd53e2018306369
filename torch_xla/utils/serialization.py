"""Files for data too large to be copied to the CPU at once: each tensor has a file of its own.

save(data, "x.pt")     writes x.pt (the data with a TensorReference in the place of each tensor)
                       and x.pt.tensors/tensor_0.pt, tensor_1.pt, ...
"""

from __future__ import annotations

import shutil
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

    Tensors that are one (tied weights in a state_dict) are in one file. Replaces what an earlier save left.
    """
    write = transfers.writes(master_only, global_master)
    if write:
        shutil.rmtree(_folder(path), ignore_errors=True)
        _folder(path).mkdir(parents=True)

    def convert(tensors: list[torch.Tensor]) -> list[Any]:
        transfers._compute([t for t in tensors if t.device.type == "xla"])
        numbers: dict[int, int] = {}
        results: list[Any] = []
        for tensor in tensors:
            identity = recorder.module().tensor_id(tensor) if tensor.device.type == "xla" else -id(tensor)
            tid = numbers.setdefault(identity, len(numbers))
            if write and not _file(path, tid).exists():
                torch.save(tensor.detach().cpu(), _file(path, tid))
            results.append(TensorReference(tid) if write else tensor)
        return results

    references = transfers.ToXlaTensorArena(convert, lambda tensor: True).transform(data, in_place=False)
    if write:
        torch.save(references, path)


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
