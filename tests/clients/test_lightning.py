"""Lightning: its Trainer and Fabric on 1, 2, 4 and 8 xla devices of the CPU, in the precisions that it has for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

from tests.clients import checks

checks.library("lightning")
checks.library("tensorboard")

#: Precision and devices: what values are stored as, and how close parameters come to those of the CPU in float32.
TRAINERS = {
    ("32-true", 1): ("float32", 1e-5),
    ("32-true", 2): ("float32", 1e-5),
    ("32-true", 4): ("float32", 1e-5),
    ("32-true", 8): ("float32", 1e-5),
    ("bf16-true", 1): ("bfloat16", 3e-2),
    ("bf16-true", 2): ("bfloat16", 3e-2),
    ("16-true", 1): ("bfloat16", 3e-2),  # as XLA_USE_F16 is documented
}


def plain(clip: float | None, shuffle: bool = False) -> nn.Module:
    """The model after the same training on the CPU, with the batches of all ranks in one."""
    from tests.clients import lightning_program as same

    model, batches = same.network(), []
    sampler = DistributedSampler(same.data(), num_replicas=1, rank=0, shuffle=shuffle)
    for epoch in range(same.EPOCHS):
        sampler.set_epoch(epoch)
        batches += list(DataLoader(same.data(), batch_size=same.BATCH, sampler=sampler))
    optimizer = torch.optim.SGD(model.parameters(), lr=same.RATE, momentum=0.9)
    checks.replay(model, batches, optimizer, lambda b: nn.functional.cross_entropy(model(b[0]), b[1]), clip=clip)
    return model


@pytest.mark.parametrize(("precision", "devices"), TRAINERS)
def test_trainer(precision: str, devices: int, tmp_path: Path) -> None:
    stored, close = TRAINERS[precision, devices]
    inside, found = checks.program("lightning_program", precision, str(devices), str(tmp_path), devices=devices)
    assert inside == {"device": "xla:0", "dtype": "torch.float32", "stored": stored}
    assert {"loss", "evaluated"} <= found.keys() and found["evaluated"] < 0.7
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=False)
    # Among several devices the Trainer shuffles what it trains on, whatever the loader says.
    expected = plain(clip=1.0 if devices == 1 else None, shuffle=devices > 1).state_dict()
    assert {value.device.type for value in checkpoint["state_dict"].values()} == {"cpu"}
    checks.assert_close(
        (checkpoint["state_dict"][f"net.{name}"] for name in expected), expected.values(), rtol=close, atol=close
    )
    assert list(tmp_path.glob("lightning_logs/version_*/metrics.csv"))
    assert list(tmp_path.glob("lightning_logs/version_*/events.out.tfevents.*"))


@pytest.mark.parametrize("devices", [1, 2])
def test_fabric(devices: int, tmp_path: Path) -> None:
    (results,) = checks.program("lightning_program", "32-true", str(devices), str(tmp_path), "fabric", devices=devices)
    checks.assert_close(results.pop("weight"), plain(clip=None).get_parameter("0.weight").flatten())
    assert results == {"device": "xla:0", "dtype": "torch.float32", "gathered": list(range(devices))}


@pytest.mark.parametrize("name", ["xla", "pytorch"])
def test_profilers(name: str, tmp_path: Path) -> None:
    """The same training; torch's profiler shows the programs."""
    inside, found = checks.program("lightning_program", "32-true", "1", str(tmp_path), name)
    assert inside["device"] == "xla:0" and found["evaluated"] < 0.7
    if name == "pytorch":
        texts = "".join(path.read_text() for path in tmp_path.glob("fit-profile*.txt"))
        assert "xla::execute" in texts or any("xla::execute" in p.read_text() for p in tmp_path.glob("*.json"))
