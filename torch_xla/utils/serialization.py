"""Serialize data with one file per tensor, for tensors that do not fit into host memory together.

save(data, "x.pt")     writes x.pt (the data with a TensorReference in place of each tensor)
                       and x.pt.tensors/tensor_0.pt, tensor_1.pt, ...

x.pt is written last and lists its tensor files: if the process dies before, the files of an earlier save stay valid.
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
    """Reference, in the saved data, to the tensor in ``tensor_<tid>.pt``."""

    tid: int


def _folder(path: str | Path) -> Path:
    return Path(f"{path}.tensors")


def _file(path: str | Path, tid: int) -> Path:
    return _folder(path) / f"tensor_{tid}.pt"


def save(data: Any, path: str | Path, master_only: bool = True, global_master: bool = False) -> None:
    """Save ``data``, copying one xla tensor to the CPU at a time.

    A tensor that occurs several times (tied weights in a state_dict) has one file. The files of an earlier save are
    replaced after all new ones are written. All replicas must call this function, which waits for all of them.

    Args:
      data: nested containers with xla tensors.
      path: path of the main file.
      master_only, global_master: as in [xm.save][torch_xla.core.xla_model.save].

    Raises:
      RuntimeError: another replica could not write.

    Examples:
      >>> import torch
      >>> from torch_xla.utils import serialization
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> serialization.save(model.state_dict(), "model.pt")
      >>> sorted(serialization.load("model.pt"))
      ['bias', 'weight']
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
    """Return the number of a tensor file, -1 for another file name."""
    found = re.fullmatch(r"tensor_(\d+)\.pt", file.name)
    return int(found[1]) if found else -1


def load(path: str | Path) -> Any:
    """Load what save() wrote, with all tensors on the CPU.

    Args:
      path: path of the main file.

    Raises:
      FileNotFoundError: the main file or a tensor file is missing.

    Examples:
      >>> import torch
      >>> from torch_xla.utils import serialization
      >>> serialization.save({"weight": torch.ones(2, device="xla")}, "weights.pt")
      >>> serialization.load("weights.pt")
      {'weight': tensor([1., 1.])}
    """
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
