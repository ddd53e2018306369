"""Programs that test_distributed_checkpoint.py spawns; each function asserts on every rank."""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine.base import atomic_file
from torch_xla.distributed import checkpoint, xla_backend

Trained = tuple[nn.Module, torch.optim.Optimizer]


def trained(seed: int, steps: int = 2) -> Trained:
    """A model with buffers and an optimizer with state, on xla; the same on every rank."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 1)).to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4).to("xla")).sum().backward()
        xm.optimizer_step(optimizer, barrier=True)
    return model, optimizer


def state_of(one: Trained) -> dict[str, Any]:
    model, optimizer = get_state_dict(*one)
    return {"model": model, "optimizer": optimizer, "epoch": 3}


def tensors_of(one: Trained) -> list[torch.Tensor]:
    """Return all tensors of the model and the optimizer, on the CPU."""
    state = one[1].state_dict()["state"]
    return [t.detach().cpu() for t in (*one[0].state_dict().values(), *(v for s in state.values() for v in s.values()))]


def save(one: Trained, folder: Path, **how: Any) -> Any:
    """Write the checkpoint, and its tensors to a plain file for comparison."""
    torch.save(tensors_of(one), folder.with_suffix(".expected"))
    return (
        dcp.async_save(state_of(one), checkpoint_id=folder, **how)
        if how
        else dcp.save(state_of(one), checkpoint_id=folder)
    )


def assert_loads(folder: Path) -> None:
    """Assert that the checkpoint restores a model and an optimizer with other values."""
    fresh = trained(2, steps=1)
    state = state_of(fresh) | {"epoch": 0}
    dcp.load(state, checkpoint_id=folder)
    set_state_dict(*fresh, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for got, expected in zip(tensors_of(fresh), torch.load(folder.with_suffix(".expected")), strict=True):
        assert torch.equal(got, expected)
    assert state["epoch"] == 3 and {p.device.type for p in fresh[0].parameters()} == {"xla"}


def save_and_load(index: int, folder: Path) -> None:
    """torch.distributed.checkpoint in the foreground and the background; xm.save."""
    assert xla_backend.ProcessGroupXla is not None
    dist.init_process_group("xla", init_method="xla://")
    one = trained(1)
    assert_loads(folder / "alone")  # written by one process
    save(one, folder / "both")
    assert_loads(folder / "both")
    group = dist.new_group(backend="gloo")
    future = save(one, folder / "behind", process_group=group, async_stager=checkpoint.Stager())
    with torch.no_grad():
        for parameter in one[0].parameters():
            parameter.zero_()  # while the background thread writes
    torch_xla.sync()
    future.result()
    dist.barrier()
    assert_loads(folder / "behind")
    _xm_save(index, folder)
    dist.destroy_process_group()


def _xm_save(rank: int, folder: Path) -> None:
    """A synchronous save has written when it returns on every rank; a failure raises on all ranks."""
    for number in range(3):
        total = xm.all_reduce("sum", torch.full((2,), number, device="xla"))
        xm.save({"total": total}, folder / "file.pt")
        assert torch.load(folder / "file.pt")["total"].tolist() == [2 * number] * 2
        xm.rendezvous("read")
    raised, words = (RuntimeError, "replica 0 could not write") if rank else (FileNotFoundError, "No such file")
    with pytest.raises(raised, match=words):
        xm.save(total, folder / "missing" / "file.pt")


class Killing(io.FileIO):
    """A file that kills the process silently after ``limit`` bytes."""

    limit = 0

    def write(self, data: Any) -> int:
        room = self.limit - self.tell()
        if room < len(memoryview(data).cast("B")):
            super().write(memoryview(data).cast("B")[:room])
            os.kill(os.getpid(), signal.SIGKILL)
        return super().write(data)


def killed_while_saving(index: int, path: Path, limit: int) -> None:
    """Rank 0 dies while writing a file, and rank 1 waits for it."""
    values = xm.all_reduce("sum", torch.ones(5000, device="xla"))
    if index == 0:
        Killing.limit = limit
        atomic_file.open_temp_file = lambda part: Killing(part, "wb")
    xm.save({"values": values}, path)


def killed_in_a_checkpoint(index: int, folder: Path) -> None:
    """Rank 1 dies after writing part of its data."""
    dist.init_process_group("xla", init_method="xla://")

    class Writer(dcp.FileSystemWriter):
        def write_data(self, plan: Any, planner: Any) -> Any:
            written = super().write_data(plan, planner)
            if index == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return written

    dcp.save(state_of(trained(5)), storage_writer=Writer(folder))
