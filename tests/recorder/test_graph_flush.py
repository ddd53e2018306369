"""Graphs without a step barrier: missing barriers, and graphs that exceed the size limit."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn, optim

import torch_xla
from tests.support.helpers import Counts, counts, run_script
from torch_xla._engine.base.messages import shorten_paths
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.execution import barrier


def _loop_without_barrier(steps: int, optimizers: int = 1) -> tuple[list[float], Counts]:
    """Train without a barrier; return the sizes of the graphs that ran, and counts."""
    models = [nn.Linear(3, 1).to("xla") for _ in range(optimizers)]
    opts = [optim.Adam(model.parameters(), lr=0.01) for model in models]
    x = torch.randn(4, 3).to("xla")
    torch_xla.sync()
    with counts() as moved:
        for _ in range(steps):
            for model, optimizer in zip(models, opts, strict=True):
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
    return _sizes()[-moved["TensorsGraphSize"] :], moved  # the last graph of a window, which may be full


def _sizes() -> list[float]:
    found = metrics.metrics().get("TensorsGraphSize")
    return [value for _, value in found.data()[2]] if found else []


def test_missing_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barrier, "_warned", False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        sizes, moved = _loop_without_barrier(8)
    assert len(caught) == 1, [str(w.message) for w in caught]
    message = str(caught[0].message)
    here = shorten_paths(__file__)
    assert f"{here}:" in message and "torch_xla.sync()" in message and "Adam.step()" in message
    line = int(message.split(f"{here}:")[1].split()[0].rstrip(";"))
    with open(__file__) as source:
        assert "optimizer.step()" in source.readlines()[line - 1]
    assert caught[0].filename == __file__, "the warning itself points at the user's line"
    assert moved["MarkStep"] == 0 and moved["GraphFlush"] >= 7
    assert moved.compilations <= 4 and len(sizes) >= 7
    assert max(sizes[3:]) == min(sizes[3:]), "every step has the same graph"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _loop_without_barrier(3)  # warns once per process


def test_two_optimizers_between_barriers_do_not_warn() -> None:
    nets = [nn.Linear(3, 3).to("xla") for _ in range(2)]
    opts = [optim.SGD(net.parameters(), lr=0.01) for net in nets]
    x = torch.randn(4, 3).to("xla")
    with counts() as moved:
        for _ in range(4):
            for optimizer in opts:
                optimizer.zero_grad()
                nets[1](nets[0](x)).pow(2).mean().backward()
                optimizer.step()
            torch_xla.sync()
    assert moved["GraphFlush"] == 0 and moved["MarkStep"] == 4 and moved.executions == 4


def test_automatic_barrier_can_be_disabled() -> None:
    out = run_script(
        """
        import torch, torch_xla
        from torch_xla.debug import metrics as met
        w = torch.nn.Parameter(torch.ones(2, device="xla"))
        optimizer = torch.optim.SGD([w], lr=0.1)
        for _ in range(5):
            w.grad = torch.ones(2, device="xla")
            optimizer.step()
        print(met.counter_value("GraphFlush"), met.metric_data("ExecuteTime"))
        print(round(w[0].item(), 4))
        """,
        TORCH_XLA_AUTO_SYNC="0",
    )
    assert out.stdout == "None None\n0.5\n"


def test_large_graphs_are_flushed() -> None:
    out = run_script(
        """
        import torch, torch_xla
        from torch_xla.debug import metrics as met
        x = torch.zeros(2, device="xla")
        for _ in range(95):
            x = x + 1
        print(met.counter_value("GraphFlush"), met.metric_data("ExecuteTime")[0])
        print(max(v for _, v in met.metric_data("TensorsGraphSize")[2]))
        print(x.tolist())
        """,
        XLA_TRIM_GRAPH_SIZE="20",
    )
    assert out.stdout == "4 4\n20\n[95.0, 95.0]\n"
