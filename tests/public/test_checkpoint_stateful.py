"""Stateful objects in a checkpoint: models, optimizers and data loaders, which continue where they were."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DistributedSampler

from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental.distributed_checkpoint import CheckpointManager, RankLocalState

SAMPLES, BATCH, PER_EPOCH = 24, 4, 6


class ShuffledLoader:
    """Batches of a DistributedSampler's indices. Its state is the epoch and the number of batches it has returned."""

    def __init__(self) -> None:
        self.sampler = DistributedSampler(range(SAMPLES), num_replicas=1, rank=0, seed=7)
        self._epoch = self._returned = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        self.sampler.set_epoch(self._epoch)
        order = torch.tensor(list(self.sampler))
        while self._returned < PER_EPOCH:
            self._returned += 1
            yield order[BATCH * (self._returned - 1) : BATCH * self._returned]
        self._epoch, self._returned = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch} | ({"returned": self._returned} if self._returned else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._epoch, self._returned = state["epoch"], state.get("returned", 0)


def torchdata_loader() -> Any:
    """A shuffling StatefulDataLoader of torchdata; its generator is part of its state."""
    module = pytest.importorskip("torchdata.stateful_dataloader", reason="install torchdata")
    torch.manual_seed(3)
    return module.StatefulDataLoader(range(SAMPLES), batch_size=BATCH, shuffle=True)


def train(folder: Path, make_loader: Callable[[], Any], steps: int, wrap: bool) -> list[tuple[int, list[int]]]:
    """Restore, train for some steps, and save each; return (epoch, samples) of each step."""
    loader, model = make_loader(), nn.Linear(1, 1).to("xla")
    manager = CheckpointManager(str(folder), save_interval=1, max_to_keep=1, chkpt_on_preemption=False)
    progress = {"epoch": 0}
    state = {"model": model, "data": RankLocalState(loader), "progress": progress, "step": -1}
    restored = manager.restore_latest(state)
    step, seen = 0 if restored is None else restored + 1, []
    assert state["step"] == step - 1
    last = step + steps
    while True:
        for batch in MpDeviceLoader(loader, "xla") if wrap else loader:
            seen.append((progress["epoch"], batch.tolist()))
            manager.save_async(step, state | {"step": step})
            step += 1
            if step == last:
                manager.join()
                return seen
        progress["epoch"] += 1


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata calls it
@pytest.mark.parametrize("wrap", [False, True], ids=["plain", "MpDeviceLoader"])
@pytest.mark.parametrize("make_loader", [ShuffledLoader, torchdata_loader])
def test_data_continue(tmp_path: Path, make_loader: Callable[[], Any], wrap: bool) -> None:
    """Interrupted in the middle and at the end of an epoch: every step has the samples of the uninterrupted run."""
    expected = train(tmp_path / "uninterrupted", make_loader, 16, wrap)
    parts = [train(tmp_path / "parts", make_loader, steps, wrap) for steps in (4, 2, 3, 7)]
    assert [step for part in parts for step in part] == expected
    assert expected[0][1] != expected[PER_EPOCH][1], "each epoch has its own order"
    for epoch in range(2):
        samples = [sample for at, batch in expected for sample in batch if at == epoch]
        assert sorted(samples) == list(range(SAMPLES))


def test_models_and_optimizers(tmp_path: Path) -> None:
    """Saved by save and save_async, as objects and as their state dicts; restored into either."""

    def build(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(seed)
        model = nn.Linear(3, 2).to("xla")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * seed, momentum=0.9)
        model(torch.ones(1, 3, device="xla")).sum().backward()
        optimizer.step()
        return model, optimizer

    model, optimizer = build(1)
    saved = {"objects": {"model": model, "optimizer": optimizer}}
    saved["dicts"] = {name: value.state_dict() for name, value in saved["objects"].items()}
    manager = CheckpointManager(str(tmp_path), save_interval=1, chkpt_on_preemption=False)
    assert manager.save(0, saved["objects"]) and manager.save_async(1, saved["objects"])
    assert manager.save(2, saved["dicts"]) and manager.save_async(3, saved["dicts"])
    manager.join()
    for step in range(4):
        other, other_optimizer = build(2)
        state: dict[str, Any] = {"model": other, "optimizer": other_optimizer}
        manager.restore(step, state)
        assert state == {"model": other, "optimizer": other_optimizer}, "the objects themselves"
        for got, want in zip(other.parameters(), model.parameters(), strict=True):
            assert torch.equal(got.cpu(), want.cpu())
            got, want = (o.state[p]["momentum_buffer"] for o, p in ((other_optimizer, got), (optimizer, want)))
            assert torch.equal(got.cpu(), want.cpu())
        assert other_optimizer.param_groups[0]["lr"] == 0.1


def test_state_of_another_number_of_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = CheckpointManager(str(tmp_path), save_interval=1, chkpt_on_preemption=False)
    manager.save(0, {"data": RankLocalState(ShuffledLoader())})
    monkeypatch.setattr("torch_xla._engine.job.replicas.process_count", lambda: 2)
    state = RankLocalState(ShuffledLoader())
    with pytest.raises(RuntimeError, match="process_0_of_2"):
        manager.restore(0, {"data": state})


def test_object_without_state() -> None:
    with pytest.raises(TypeError, match=r"RankLocalState: list lacks state_dict\(\) or load_state_dict\(\)"):
        RankLocalState([1])
