"""TRL, peft, sentence-transformers and torchmetrics on 2 and 4 processes: the losses and metrics of one, on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.clients import checks

for name in ("trl", "peft", "sentence_transformers", "torchmetrics", "datasets"):
    checks.library(name)

#: How close the losses are to those of the CPU in the same precision.
CLOSE = {"sft": 1e-3, "lora": 2e-2, "sentences": 1e-3}


@pytest.mark.parametrize("devices", [2, 4])
def test_several(devices: int, tmp_path: Path) -> None:
    """Every rank ends with the same parameters and metrics, and has computed on xla; see the program."""
    expected = told("cpu", tmp_path, 0, USE_TORCH_XLA="0")[0]
    ranks = told("xla", tmp_path, devices)
    for job, close in CLOSE.items():
        assert [rank[job] for rank in ranks] == [ranks[0][job]] * devices, job
        checks.assert_close(ranks[0][job]["losses"], expected[job]["losses"], rtol=close)
    for rank in ranks:
        for metric, value in expected["metrics"].items():
            checks.assert_close(rank["metrics"][metric], value)
    for one in (expected, ranks[0]):
        assert (one["lora"]["computed"], one["lora"]["adapters"]) == (["torch.bfloat16"], True)


def told(where: str, folder: Path, devices: int, **variables: str) -> list[dict[str, Any]]:
    """What each rank has told, in order, but for its rank; losses fall."""
    found = checks.program(
        "multi_process_program", str(folder / where), str(devices), devices=max(devices, 1), **variables
    )
    found.sort(key=lambda one: one["rank"])
    assert [one.pop("rank") for one in found] == list(range(max(devices, 1)))
    for job in CLOSE:
        assert found[0][job]["losses"][-1] < found[0][job]["losses"][0], job
    return found
