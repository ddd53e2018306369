"""Donated buffers: training holds one copy of the weights, and values stay correct."""

from __future__ import annotations

import gc
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine import recorder
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics import metrics


def test_training_holds_one_copy() -> None:
    """After a step the device holds only the parameters, the optimizer's state and the batch."""
    model = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 3)).to("xla")
    optimizer = optim.Adam(model.parameters(), lr=0.01)
    x, y = torch.randn(8, 32).to("xla"), torch.randint(3, (8,)).to("xla")
    torch_xla.sync()
    gc.collect()
    elsewhere = {id(buffer) for buffer in recorder.bindings().live_buffers(0)}
    elsewhere -= {
        id(node.buffer) for node in recorder.bindings().nodes_of([*model.parameters(), *model.buffers(), x, y])
    }
    for _ in range(4):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        xm.optimizer_step(optimizer, barrier=True)
    optimizer.zero_grad()
    held = [*model.parameters(), *model.buffers(), x, y, loss]
    held += [v for s in optimizer.state.values() for v in s.values() if v.device.type == "xla"]
    held_buffers = {id(node.buffer) for node in recorder.bindings().nodes_of(held)}
    alive = {id(b): b for b in recorder.bindings().live_buffers(0) if id(b) not in elsewhere}
    assert [b.shape for i, b in alive.items() if i not in held_buffers] == []
    assert len(alive) == len(held)
    assert sum(b.nbytes for b in alive.values()) == sum(t.nbytes for t in held)


def test_updated_parameters_are_donated() -> None:
    weights = [nn.Parameter(torch.randn(16, 16).to("xla")) for _ in range(3)]
    optimizer = optim.SGD(weights, lr=0.01, momentum=0.9)
    x = torch.randn(16, 16).to("xla")
    old: list[Any] = []
    for step in range(3):
        optimizer.zero_grad()
        (weights[2] @ weights[1] @ weights[0] @ x).sum().backward()
        old = list(recorder.bindings().live_buffers(0)) if step == 2 else []
        xm.optimizer_step(optimizer, barrier=True)
    assert metrics.metrics()["InputOutputAliasCount"].data()[2][-1][1] >= 6, "three weights, three momenta"
    assert sum(buffer.is_deleted() for buffer in old) >= 6
    assert not any(buffer.is_deleted() for buffer in recorder.bindings().live_buffers(0))


def test_referenced_values_are_not_donated() -> None:
    w = torch.ones(4).to("xla")
    view, twin, alias = w[:2], w.clone(), w.detach()
    torch_xla.sync()
    for _ in range(2):
        w.mul_(3)
        torch_xla.sync()
    saved = w.clone()
    w.mul_(5)
    torch_xla.sync()
    assert [t[0].item() for t in (w, view, twin, alias, saved)] == [45, 45, 1, 45, 9]


def test_a_value_is_not_donated_to_a_read() -> None:
    """Reading runs a part of the graph; inputs of the rest are not donated."""
    w = torch.ones(3).to("xla")
    w.add_(1)
    y = w * 2
    assert y.tolist() == [4, 4, 4]
    w.add_(1)
    assert w.tolist() == [3, 3, 3] and (y + w).tolist() == [7, 7, 7]


def _addresses(tensors: list[torch.Tensor]) -> list[int]:
    return [node.buffer.unsafe_buffer_pointer() for node in recorder.bindings().nodes_of(tensors)]


OPTIMIZERS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "sgd": lambda p: optim.SGD(p, lr=0.01, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=0.01),
    "adamw, one by one": lambda p: optim.AdamW(p, lr=0.01, foreach=False),
    "adam, fused": lambda p: optim.Adam(p, lr=0.01, fused=True),
    "adagrad": lambda p: optim.Adagrad(p, lr=0.01),
    "rmsprop, centered": lambda p: optim.RMSprop(p, lr=0.01, momentum=0.9, centered=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_each_value_is_written_over_itself(name: str) -> None:
    """If equal layers exchanged their buffers, each program would copy both values."""
    layers = [layer for _ in range(4) for layer in (nn.Linear(16, 16), nn.BatchNorm1d(16))]
    model = nn.Sequential(*layers).to("xla")
    optimizer = OPTIMIZERS[name](model.parameters())
    x = torch.randn(8, 16).to("xla")
    seen: list[list[int]] = []
    for _ in range(4):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        torch_xla.sync(wait=True)
        state = [v for s in optimizer.state.values() for v in s.values() if getattr(v, "device", x.device) == x.device]
        running = [b for b in model.buffers() if b.is_floating_point()]
        seen.append(_addresses([*model.parameters(), *state, *running]))
    assert seen[-1] == seen[-2]
    assert len(set(seen[-1])) == len(seen[-1]) >= 16 + 8, "parameters and running statistics of BatchNorm"


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_weight_is_not_copied_before_its_update(name: str) -> None:
    """On a CPU: the gradient of a layer's input and the update both read the weight, and neither depends on the
    other."""
    model = nn.Sequential(*(nn.Linear(24, 24) for _ in range(4))).to("xla")
    optimizer = OPTIMIZERS[name](model.parameters())
    x = torch.randn(8, 24).to("xla")
    for _ in range(3):
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()
        torch_xla.sync()
    *_, last = program_cache.cache.values()
    assert last.compiled is not None
    text = last.compiled.as_text()
    assert "dot(" in text
    assert not re.findall(r"= f32\[24,24\]\S* copy\(", text)
