"""Every operation compiled and run alone: by the environment, and eagerly; torch_xla.compile inside of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla
from tests.support.helpers import Counts, counts, run_script, to
from torch_xla._engine.base.settings import settings
from torch_xla.experimental import eager_mode, eager_mode_context, is_eager_mode


def _writes(x: torch.Tensor) -> list[torch.Tensor]:
    y = x.clone()
    y[1:] = x[:-1] * 2.5
    y.t()[0].add_(7)
    parts = y.split(1, 1)
    return [y, parts[2], torch.cat(parts, 0)]


def _several(x: torch.Tensor) -> list[torch.Tensor]:
    values, indices = x.max(1)
    mean = torch.var_mean(x, 1)
    return [values, indices, *mean, *x.topk(2)]


def _random(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.randn_like(x), nn.functional.dropout(x, 0.5), torch.bernoulli(x.sigmoid()), torch.rand(3).to(x)]


def _train(x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).to(x.device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        optimizer.zero_grad()
        net(x).square().mean().backward()
        optimizer.step()
        torch_xla.sync()
    return [p.detach() for p in net.parameters()] + list(net.buffers())


PROGRAMS: dict[str, Callable[[torch.Tensor], list[torch.Tensor]]] = {
    "arithmetic": lambda x: [x + x * 0.3 - 1, (x * (2 + 3j)).abs(), x.to(torch.float64) / 3, x > 0],
    "writes": _writes,
    "several results": _several,
    "matrices": lambda x: [x @ x.t(), torch.einsum("ij,kj->ik", x, x), torch.linalg.svdvals(x)],
    "no results that exist": lambda x: [torch.ones_like(x)],
    "a view only": lambda x: [x.t(), x[0]],
    "random": _random,
    "training": _train,
}


@pytest.fixture
def op_by_op(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SYNC_TENSORS_OPBYOP", "1")
    monkeypatch.setenv("XLA_GET_TENSORS_OPBYOP", "1")
    settings.reload()
    yield
    monkeypatch.undo()
    settings.reload()


@pytest.fixture
def eager() -> Iterator[None]:
    eager_mode(True)
    yield
    eager_mode(False)


def _run(name: str) -> tuple[list[torch.Tensor], Counts]:
    x = torch.linspace(-2, 3, 12).reshape(4, 3).to("xla")
    torch.manual_seed(1)
    with counts() as moved:
        results = PROGRAMS[name](x)
        torch_xla.sync()
        on_cpu: list[torch.Tensor] = to("cpu", results)
    return on_cpu, moved


@pytest.fixture(scope="module")
def fused() -> dict[str, list[torch.Tensor]]:
    return {name: _run(name)[0] for name in PROGRAMS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_those_of_the_fused_graph(name: str, fused: dict[str, Any], op_by_op: None) -> None:
    results, moved = _run(name)
    torch.testing.assert_close(results, fused[name], rtol=1e-5, atol=1e-6)
    if name == "random":
        assert all(torch.equal(a, b) for a, b in zip(results, fused[name], strict=True))
    assert moved["ExecuteTime"] == 0
    assert moved["ExecuteChainedTime"] == moved["OpByOpGraphSize"] > 0
    assert moved.compilations == moved["OpByOpCompileCacheMiss"]


@pytest.mark.parametrize("name", [name for name in PROGRAMS if name != "random"])
def test_eager_results_are_those_of_the_fused_graph(name: str, fused: dict[str, Any], eager: None) -> None:
    """(Random numbers are others, as each operation is a graph: the seed moves on with each.)"""
    results, moved = _run(name)
    torch.testing.assert_close(results, fused[name], rtol=1e-5, atol=1e-6)
    assert moved.only("ExecuteTime", "CompileTime", "GraphFlush") == {}
    assert moved["EagerOpCompileTime"] == moved["OpByOpCompileCacheMiss"]


def test_executables_are_shared_between_graphs(op_by_op: None) -> None:
    x = torch.ones(2, 7, device="xla")
    (x.sinh() * 3).cpu()
    with counts() as moved:
        y = x.sinh().sinh() * 4
        torch_xla.sync()
    assert moved.only("OpByOpCompileCacheHit", "OpByOpCompileCacheMiss", "CompileTime") == {"OpByOpCompileCacheHit": 3}
    with counts() as moved:
        again = x.sinh().sinh() * 5
        torch_xla.sync()
    assert moved.only("OpByOpCompileCacheHit", "OpByOpCompileCacheMiss", "ExecuteChainedTime") == {
        "ExecuteChainedTime": 1
    }
    torch.testing.assert_close((again / y).cpu(), torch.full((2, 7), 1.25))


def test_eager_runs_each_op_when_it_is_called(eager: None) -> None:
    x = torch.ones(2, 5, device="xla")
    with counts() as moved:
        y = x.cosh()
    assert moved.only("EagerOpExecuteTime", "EagerOpCompileTime") == {"EagerOpExecuteTime": 1, "EagerOpCompileTime": 1}
    with counts() as moved:
        x.cosh()
        y.mul_(2)
        torch_xla.sync()
    assert moved["EagerOpExecuteTime"] == 2
    assert moved["EagerOpCompileTime"] == 1


def test_turning_eager_mode_on_runs_what_is_pending_as_one_graph() -> None:
    x = torch.ones(2, 5, device="xla").cosh() + 2
    with counts() as moved, eager_mode_context(True):
        assert is_eager_mode()
        x.sinh()
    assert not is_eager_mode()
    assert moved.only("ExecuteTime", "EagerOpExecuteTime") == {"ExecuteTime": 1, "EagerOpExecuteTime": 1}


def test_compile_is_one_graph_in_eager_mode(eager: None) -> None:
    @torch_xla.compile
    def step(x: torch.Tensor) -> torch.Tensor:
        assert not is_eager_mode()
        return (x.sinh() + 1).cosh()

    x = torch.ones(3, device="xla")
    step(x)
    with counts() as moved:
        y = step(x)
    assert is_eager_mode()
    assert moved.only("ExecuteTime", "CompileTime", "EagerOpExecuteTime", "MarkStep") == {
        "ExecuteTime": 1, "MarkStep": 2
    }  # fmt: skip
    torch.testing.assert_close(y.cpu(), (torch.ones(3).sinh() + 1).cosh())


def test_compile_forms() -> None:
    def double(x: torch.Tensor) -> torch.Tensor:
        """Doc."""
        return x * 2

    x = torch.ones(2, device="xla")
    wrapped = torch_xla.compile(double, name="twice")
    assert (wrapped.__name__, wrapped.__doc__) == ("double", "Doc.")
    decorated = torch_xla.compile(full_graph=True)(double)
    for call in (wrapped, decorated, torch_xla.compile(wrapped)):
        with counts() as moved:
            assert call(x).tolist() == [2, 2]
        assert moved["MarkStep"] >= 2
    with counts() as moved, torch_xla.compile():
        y = x * 2
    assert moved.executions == 1
    assert y.tolist() == [2, 2]


def test_full_graph_forbids_to_run_inside() -> None:
    x = torch.ones(2, device="xla")

    @torch_xla.compile(full_graph=True, name="my step")
    def step() -> float:
        return (x + 41).sum().item()

    with pytest.raises(RuntimeError, match=r"^torch_xla.compile: my step is .*full_graph=True.*test_op_by_op.py:\d+"):
        step()
    assert (x + 1).tolist() == [2, 2]  # allowed again

    inside = torch_xla.compile(lambda: [t for t in (x.sum(),) if t > 1])
    assert len(inside()) == 1  # without full_graph a value may be read


def test_max_different_graphs() -> None:
    step = torch_xla.compile(lambda x: (x * 2).sum(), name="small", max_different_graphs=2)
    for size in (3, 4, 3, 4):
        assert step(torch.ones(size, device="xla")).item() == 2 * size
    with pytest.raises(RuntimeError, match=r"^torch_xla.compile: small .*max_different_graphs=2"):
        step(torch.ones(5, device="xla"))
    torch_xla.sync()


def test_an_error_inside_ends_the_region(eager: None) -> None:
    made = []

    @torch_xla.compile(full_graph=True)
    def fails() -> None:
        made.append(torch.ones(2, device="xla") + 3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert is_eager_mode()
    assert made[0].tolist() == [4, 4]


def test_environment() -> None:
    """Each variable of the documents, and the eager mode of later releases, in a separate process."""
    check = """
        import torch, torch_xla
        from torch_xla.debug import metrics as met
        def data(name):
            return (met.metric_data(name) or [0])[0]
        x = torch.ones(3, device="xla").sinh() + 1
        before = data("EagerOpExecuteTime")
        torch_xla.sync()
        synced = data("ExecuteChainedTime"), data("ExecuteTime")
        (x * 2).sum().item()
        got = data("ExecuteChainedTime") - synced[0], data("ExecuteTime") - synced[1]
        print(before, synced, got)
    """
    shown = [
        run_script(check, **{name: "1"}).stdout.strip()
        for name in ("GET_TENSORS_OPBYOP", "SYNC_TENSORS_OPBYOP", "XLA_USE_EAGER_DEBUG_MODE")
    ]
    assert shown == ["0 (0, 1) (1, 0)", "0 (1, 0) (0, 1)", "3 (0, 0) (0, 0)"]
