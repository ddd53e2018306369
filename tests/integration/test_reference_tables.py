"""The generated pages of docs/reference/ are up to date and complete."""

from __future__ import annotations

import importlib.util

import pytest

from tests.support.helpers import ROOT, run_script
from torch_xla._engine.diagnostics import metric_descriptions

_SPEC = importlib.util.spec_from_file_location("reference_tables", ROOT / "scripts" / "docs" / "reference_tables.py")
assert _SPEC is not None and _SPEC.loader is not None
tables = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(tables)

_PROGRAM = """
import torch
import torch_xla
import torch_xla.debug.metrics as met
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.experimental import eager_mode

model = torch.nn.Linear(4, 4).to("xla")
optimizer = torch.optim.AdamW(model.parameters())
data = torch.utils.data.TensorDataset(torch.randn(16, 4))
for (x,) in MpDeviceLoader(torch.utils.data.DataLoader(data, batch_size=4), "xla"):
    loss = model(x).sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()
torch.ones(3, device="xla:0").to("xla:1").sum().item()
eager_mode(True)
(torch.ones(2, device="xla") + 1).tolist()
print(",".join([*met.counter_names(), *met.metric_names()]))
"""


@pytest.mark.parametrize("name", tables.PAGES)
def test_page_is_up_to_date(name: str) -> None:
    """If not: ``python scripts/docs/reference_tables.py`` writes it."""
    assert (tables.REFERENCE / name).read_text() == tables.PAGES[name]()


def test_each_group_names_variables_once() -> None:
    named = [name for names in tables.GROUPS.values() for name in names]
    assert len(named) == len(set(named))


def test_seen_counters_are_documented() -> None:
    names = run_script(_PROGRAM, CPU_NUM_DEVICES="2").stdout.strip().splitlines()[-1].split(",")
    assert {"MarkStep", "ExecuteTime"} <= set(names)
    assert [name for name in names if metric_descriptions.describe(name) is None] == []


def test_counters_in_the_source_are_documented() -> None:
    """Every literal name that the engine counts has a description."""
    text = "".join(path.read_text() for path in (ROOT / "torch_xla" / "_engine").rglob("*.py"))
    counted = tables.counter_names_in(text)
    assert len(counted) > 20
    assert [name for name in sorted(counted) if metric_descriptions.describe(name) is None] == []
