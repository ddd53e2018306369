"""Fabric, accelerate and transformers' Trainer on several devices, with FSDP of xla and without: the CPU's losses."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.clients import checks

checks.library("transformers")
checks.library("lightning")


def by_hand(clip: float | None = None) -> list[float]:
    """On the CPU, with the batches of all devices in one, in the order of the rows."""
    from tests.clients import fsdp_program as same

    model, rows = same.network(), same.rows()
    batches = [
        {name: torch.stack([row[name] for row in rows[i : i + same.BATCH]]) for name in rows[0]}
        for i in range(0, len(rows), same.BATCH)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=same.RATE)
    return checks.replay(model, batches, optimizer, lambda batch: model(**batch).loss, clip=clip)


def by_trainer(folder: Path) -> list[float]:
    """transformers' Trainer on the CPU, which shuffles."""
    (results,) = checks.program("fsdp_program", "plain", str(folder), "1", USE_TORCH_XLA="0")
    assert results["devices"] == ["cpu"]
    return list(results["losses"])


#: SPMD is one process with a mesh of the devices, the others a process for each.
WAYS = {
    "fabric": 2,
    "trainer": 2,
    "trainer-spmd": 2,
    "trainer-spmd-checkpointing": 4,
    "accelerate-spmd": 4,
}


@pytest.mark.parametrize("how", WAYS)
def test_losses(how: str, tmp_path: Path) -> None:
    from tests.clients import fsdp_program as same

    devices = WAYS[how]
    (results,) = checks.program("fsdp_program", how, str(tmp_path), str(devices), devices=devices)
    expected = by_trainer(tmp_path) if "trainer" in how else by_hand(None if how == "fabric" else same.CLIP)
    checks.assert_close(results["losses"], expected, rtol=1e-5)
    whole = sum(p.numel() for p in same.network().parameters())
    assert results["devices"] == ["xla"] and results["elements"] < 1.1 * whole / devices, "a share of each parameter"


def test_accelerate(tmp_path: Path) -> None:
    """With its own launcher; norms of gradients are of all shares."""
    from tests.clients import fsdp_program as same

    launch = [checks.command_of("accelerate"), "launch", "--use_fsdp", "--num_processes", "2"]
    launch += ["--fsdp_sync_module_states", "false", "--fsdp_cpu_ram_efficient_loading", "false"]  # not for xla
    (results,) = checks.run([*launch, same.__file__, "accelerate", str(tmp_path), "2"], devices=2)
    checks.assert_close(results["losses"], by_hand(same.CLIP), rtol=1e-5)
    assert results["losses"][-1] < results["losses"][0] and results["devices"] == ["xla"]
    assert results["elements"] < 0.6 * sum(p.numel() for p in same.network().parameters())


@pytest.mark.parametrize("devices", [2, 4])
def test_trainer_with_whole_parameters(devices: int, tmp_path: Path) -> None:
    from tests.clients import fsdp_program as same

    (results,) = checks.program("fsdp_program", "data", str(tmp_path), str(devices), devices=devices)
    checks.assert_close(results["losses"], by_trainer(tmp_path), rtol=1e-5)
    assert results["devices"] == ["xla"] and results["elements"] == sum(p.numel() for p in same.network().parameters())
