"""Loops that read a value in each step and update by hand: the work of a step does not grow, and is compiled once."""

from __future__ import annotations

import warnings
from collections.abc import Iterator

import pytest
import torch

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.execution import executor, recomputation
from torch_xla._engine.graph.graph_run import GraphRun

STEPS = 8


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    torch_xla.sync()
    recomputation.forget()
    yield
    recomputation.forget()
    torch_xla.sync()


def train(device: str, reads: int = 1) -> list[float]:
    """The losses of an LSTM language model that updates its parameters (too large to be kept by a read) by hand."""
    torch.manual_seed(0)
    embedding, lstm, head = torch.nn.Embedding(90, 32), torch.nn.LSTM(32, 32), torch.nn.Linear(32, 90)
    model = torch.nn.ModuleList([embedding, lstm, head]).to(device)
    tokens = torch.randint(0, 90, (4, 3)).to(device)
    state = (torch.zeros(1, 3, 32, device=device), torch.zeros(1, 3, 32, device=device))
    losses = []
    for _ in range(STEPS):
        model.zero_grad()
        output, (hidden, cell) = lstm(embedding(tokens[:-1]), state)
        state = hidden.detach(), cell.detach()
        loss = torch.nn.functional.cross_entropy(head(output).flatten(0, 1), tokens[1:].flatten())
        loss.backward()
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-0.5)
        losses += [(loss * (i + 1)).item() for i in range(reads)]
    return losses


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of operations of each graph that runs."""
    found: list[int] = []

    def graph_run(graph: object, *args: object) -> GraphRun:
        found.append(graph.node_count)  # type: ignore[attr-defined]
        return GraphRun(graph, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(executor, "GraphRun", graph_run)
    return found


def test_the_work_of_a_step_does_not_grow(sizes: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_XLA_COMPILE_POLICY", "compile")
    with (
        pytest.warns(UserWarning, match=r"(?s)recomputes.*\soperations\sof.*TORCH_XLA_AUTO_SYNC.*explain missing-sync"),
        counts() as moved,
    ):
        losses = train("xla")
    torch.testing.assert_close(losses, train("cpu"), rtol=1e-4, atol=1e-4)
    assert len(sizes) == moved.executions + moved["InterpretedGraphs"] == STEPS
    assert len(set(sizes[3:])) == 1
    assert sizes[-1] <= sizes[1], sizes  # a step forward, back and updated
    with counts() as moved, warnings.catch_warnings():
        warnings.simplefilter("error")
        train("xla")
    assert moved.compilations <= 1, "a step is compiled once; the first one has other inputs"


def test_several_reads_of_a_step(sizes: list[int]) -> None:
    with pytest.warns(UserWarning, match=r"recomputes\s\d+\soperations\sof"):
        losses = train("xla", reads=3)
    torch.testing.assert_close(losses, train("cpu", reads=3), rtol=1e-4, atol=1e-4)
    assert max(sizes[-6:]) <= max(sizes[:6])


def test_a_loop_with_a_barrier_is_left_alone() -> None:
    weight = torch.randn(64, 64, device="xla", requires_grad=True)
    x = torch.randn(8, 64, device="xla")
    for _ in range(5):
        loss = torch.nn.functional.gelu(x @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, weight)
        weight.data.add_(gradient, alpha=-0.1)
        loss.item()
        torch_xla.sync()
    assert not recomputation.lines()


def decode(device: str) -> list[list[int]]:
    """The tokens of a model that reads in each step whether a sequence has ended, as transformers' generate does."""
    torch.manual_seed(0)
    embedding, head = torch.nn.Embedding(90, 32).to(device), torch.nn.Linear(32, 90).to(device)
    tokens = torch.tensor([[3], [5]], device=device)
    cache = torch.zeros(2, 20, 32, device=device)
    unfinished = torch.ones(2, dtype=torch.int64, device=device)
    for position in range(20):
        with torch.no_grad():
            cache[:, position] = torch.tanh(embedding(tokens[:, -1:]))[:, 0]
            token = head(cache.mean(1)).argmax(-1)
            tokens = torch.cat([tokens, token[:, None]], dim=-1)
            unfinished = unfinished & (tokens[:, -1] != 90).long()
        if (unfinished.max() == 0).item():
            break
    found: list[list[int]] = tokens.tolist()
    return found


def test_a_loop_whose_steps_end_with_a_read_is_left_alone() -> None:
    """The last read views all tokens again, which computes nothing."""
    with counts() as moved:
        found = decode("xla")
    assert found == decode("cpu")
    assert not recomputation.lines()
    assert moved["GraphFlush"] == 0
