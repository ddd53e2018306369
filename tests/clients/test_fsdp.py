"""FSDP of xla through Lightning's Fabric and transformers' Trainer: each device has its share, losses are the CPU's."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.clients import checks

checks.library("transformers")
checks.library("lightning")


def by_hand() -> list[float]:
    """On the CPU, with the batches of all devices in one, in the order of the rows."""
    from tests.clients import fsdp_program as same

    model, rows = same.network(), same.rows()
    batches = [
        {name: torch.stack([row[name] for row in rows[i : i + same.BATCH]]) for name in rows[0]}
        for i in range(0, len(rows), same.BATCH)
    ]
    optimizer = torch.optim.SGD(model.parameters(), lr=same.RATE)
    return checks.replay(model, batches, optimizer, lambda batch: model(**batch).loss)


def by_trainer(folder: Path) -> list[float]:
    """transformers' Trainer on the CPU, which shuffles."""
    (told,) = checks.program("fsdp_program", "plain", str(folder), "1", USE_TORCH_XLA="0")
    assert told["devices"] == ["cpu"]
    return list(told["losses"])


@pytest.mark.parametrize("how", ["fabric", "trainer", "spmd"])
def test_losses(how: str, tmp_path: Path) -> None:
    (told,) = checks.program("fsdp_program", how, str(tmp_path), "2", devices=2)
    checks.assert_close(told["losses"], by_hand() if how == "fabric" else by_trainer(tmp_path), rtol=1e-5)
    from tests.clients import fsdp_program as same

    whole = sum(p.numel() for p in same.network().parameters())
    assert told["devices"] == ["xla"]
    assert told["elements"] == whole if how == "spmd" else told["elements"] < 0.6 * whole, "a share of two"
