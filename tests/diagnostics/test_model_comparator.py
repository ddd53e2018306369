"""Comparisons of tensors, of saved runs, and of module layers on xla and on the CPU."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support import scripts
from tests.support.helpers import ROOT
from torch_xla._engine.base.settings import settings
from torch_xla._engine.lowering import RULES
from torch_xla._engine.lowering.registry import Rule
from torch_xla.debug import model_comparator as mc
from torch_xla.debug import recompilation
from torch_xla.debug.layer_comparator import compare_module


def test_tensors() -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, float("nan")]])
    assert mc.compare_tensors(x, x.to("xla")) is None
    assert mc.compare_tensors(x, x + 1e-9) is None
    y = x.clone()
    y[1, 0] = 3.5
    assert mc.compare_tensors(x, y) == "1 of 4 elements differ\n  [1, 0]: 3.0 vs. 3.5, apart by 0.5"
    assert mc.compare_tensors(x, y, atol=1.0) is None
    assert mc.compare_tensors(x, x.double()) == "torch.float32[2, 2] vs. torch.float64[2, 2]"
    assert mc.compare_tensors(x[0], x) == "torch.float32[2] vs. torch.float32[2, 2]"
    many = mc.compare_tensors(torch.zeros(50), torch.ones(50), max_diffs=3)
    assert many is not None and many.splitlines()[-1] == "  ... and 47 more"
    assert mc.compare_tensors(torch.tensor([True]), torch.tensor([False])) is not None
    assert mc.compare_tensors(torch.tensor(1 + 2j), torch.tensor(1 + 3j)) is not None


@pytest.fixture
def unconfigured() -> Iterator[None]:
    yield
    mc.configure(None)


def test_saved_runs(tmp_path: Path, unconfigured: None) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    mc.save("ignored", torch.ones(2))
    for folder, change in ((first, 0.0), (second, 0.25)):
        mc.configure(folder)
        mc.save("weight", torch.ones(2, device="xla"))
        mc.save("weight", torch.ones(2) + change)
        mc.save("loss", torch.ones(1), step=12)
        if change:
            mc.save("extra", torch.ones(1))
    assert sorted(p.name for p in first.iterdir()) == ["loss.12", "weight.0", "weight.1"]
    assert mc.compare(first, first) == ""
    report = mc.compare(first, second)
    assert report is not None
    assert report.splitlines()[:2] == [f"extra.0: only in {second}", "weight.1: 2 of 2 elements differ"]
    assert mc.tensor_file_compare(first / "weight.0", second / "weight.0") is None
    command = [*scripts.PYTHON, "-m", "torch_xla.debug.model_comparator", str(first)]
    environment = os.environ | scripts.server_variables()
    done = subprocess.run([*command, str(second)], env=environment, capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout.splitlines()[1]) == (1, "weight.1: 2 of 2 elements differ")


def test_folder_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mc, "_configured", False)
    monkeypatch.setenv("MODELCMP_SAVEDIR", str(tmp_path))
    settings.reload()
    mc.save("x", torch.ones(2, device="xla"), step=3)
    monkeypatch.undo()
    settings.reload()
    assert torch.equal(torch.load(tmp_path / "x.3"), torch.ones(2))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.act = nn.Softplus()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, *, scale: float) -> dict[str, torch.Tensor]:
        for layer in self.layers:
            x = self.act(layer(x)) * scale
        return {"out": self.norm(x), "sum": x.sum()}


def test_equal_layers() -> None:
    net, x = Net(), torch.randn(4, 3)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    assert compare_module(net, x, scale=2.0) is None
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    with recompilation.watch() as reports:  # compilations of the tool are not reported
        assert compare_module(net.to("xla"), x.to("xla"), scale=2.0) is None
    assert reports == []
    assert not any(module._forward_hooks for module in net.modules())


def test_the_first_different_layer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RULES["aten::softplus"]

    def wrong(*args: Any) -> Any:
        return right.function(*args) * 1.01

    monkeypatch.setitem(RULES, "aten::softplus", Rule(right.name, wrong, right.ctx, right.random, right.static_args))
    found = compare_module(Net(), torch.randn(7, 3), scale=2.0)
    assert found is not None
    assert (found.name, found.kind, found.call) == ("act", "Softplus", 0)
    assert str(found).startswith("act (Softplus): 21 of 21 elements differ\n  [0, 0]: ")


def test_a_difference_of_the_module_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    right = RULES["aten::sum"]

    def wrong(*args: Any) -> Any:
        return right.function(*args) + 1

    monkeypatch.setitem(RULES, "aten::sum", Rule(right.name, wrong, right.ctx, right.random, right.static_args))
    found = compare_module(Net(), torch.randn(6, 3), scale=2.0)
    assert found is not None and found.name == ""
    assert str(found).startswith("the module itself (Net): 1 of 1 elements differ")
