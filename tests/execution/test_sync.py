"""What runs when: laziness, the step barrier, the program cache, scalars as operands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

import torch_xla
import torch_xla.core.xla_model as xm
from tests.support.helpers import Counts, counts, run_script
from torch_xla._engine import recorder

#: The counters of the documents that these tests are about, and how they abbreviate.
SHORT = {"up": "TransferToServerTime", "out": "OutboundData", "down": "TransferFromServerTime", "in": "InboundData",
         "compile": "CompileTime", "cached": "CachedSyncTensors", "uncached": "UncachedSyncTensors",
         "run": "ExecuteTime", "size": "TensorsGraphSize", "mark": "MarkStep", "item": "aten::_local_scalar_dense",
         "handles": "CreateDataHandles", "programs": "CreateCompileHandles"}  # fmt: skip


def moves(moved: Counts) -> dict[str, int]:
    return {short: moved[name] for short, name in SHORT.items() if moved[name]}


UPLOAD = {"up": 1, "out": 1, "handles": 1}
FIRST = {"compile": 1, "uncached": 1, "programs": 1, "run": 1, "size": 1, "handles": 1}
AGAIN = {"cached": 1, "run": 1, "size": 1, "handles": 1}
DOWN = {"down": 1, "in": 1}


@pytest.mark.usefixtures("cold")
def test_acceptance_table() -> None:
    kept: list[Any] = []
    w = torch.rand(3, 3).to("xla")

    def product() -> None:
        kept.append(w @ w)
        xm.mark_step()

    def dead() -> None:
        w.matmul(w)  # its result is released immediately
        xm.mark_step()

    def scale(value: float) -> None:
        w.mul_(value)
        xm.mark_step()

    steps: list[tuple[str, Callable[[], Any], dict[str, int]]] = [
        ("upload", lambda: torch.ones(3).to("xla"), UPLOAD),
        ("record", lambda: kept.append(w + 1), {}),
        ("drop", kept.clear, {}),
        ("product", product, {"mark": 1} | FIRST),
        ("product again", product, {"mark": 1} | AGAIN),
        ("read a computed value", lambda: kept[0].cpu(), DOWN),
        ("read what is not", lambda: (w + w).cpu(), FIRST | DOWN),
        ("read again", lambda: (w + w).cpu(), AGAIN | DOWN),
        ("item", lambda: w.sum().item(), FIRST | DOWN | {"item": 1}),
        ("scale", lambda: scale(3.5), {"mark": 1} | FIRST),
        ("scale by another", lambda: scale(4.5), {"mark": 1} | AGAIN),
        ("empty", xm.mark_step, {"mark": 1}),
        ("dead", dead, {"mark": 1}),
        ("wait", xm.wait_device_ops, {}),
        ("metadata", lambda: (w.shape, w.dtype, w.device, w.t().stride(), len(w), w.is_leaf), {}),
    ]
    for name, step, expected in steps:
        with counts() as moved:
            step()
        assert moves(moved) == expected, name


def test_nothing_to_run() -> None:
    """What only moves values about has nothing to compute."""
    layer = nn.Linear(2, 2).to("xla")
    x = torch.ones(2).to("xla")
    kept = [x.detach(), x.data, nn.Parameter(x), x.view(2), layer.weight.detach()]
    with counts() as moved:
        torch_xla.sync()
    assert moves(moved) == {"mark": 1}
    assert kept[0].tolist() == [1, 1]


def test_lazy_until_asked() -> None:
    with counts() as moved:
        x = torch.ones(4, device="xla")
        for _ in range(10):
            x = (x * 1.5).relu()
        y = x.sum()
    assert moved.executions == 0 and recorder.bindings().pending_count(0) >= 20
    with counts() as moved:
        assert y.item() == pytest.approx(4 * 1.5**10)
        assert x[0].item() == pytest.approx(1.5**10)
    assert moved.executions == 2, "x was computed on the way to y; one more for x[0]"


@pytest.mark.parametrize("sync", [torch_xla.sync, xm.mark_step, lambda: torch_xla.sync(wait=True)])
def test_sync_runs_all_that_is_pending_at_once(sync: Callable[[], None]) -> None:
    tensors = [torch.full((2,), float(i), device="xla") * 2 for i in range(5)]
    with counts() as moved:
        sync()
    assert (moved.executions, moved["MarkStep"]) == (1, 1)
    with counts() as moved:
        assert [t[0].item() for t in tensors] == [0, 2, 4, 6, 8]


def test_step() -> None:
    with counts() as moved, torch_xla.step():
        x = torch.ones(2, device="xla") + 1
    assert moved["MarkStep"] == 2 and moved.executions == 1
    with counts() as moved, contextlib.suppress(KeyError), torch_xla.step():
        x += 1
        raise KeyError
    assert moved.executions == 1 and x.tolist() == [3, 3]


@pytest.mark.parametrize("with_barrier", [True, False])
def test_optimizer_step(with_barrier: bool) -> None:
    weight = nn.Parameter(torch.ones(2, device="xla"))
    weight.grad = torch.ones(2, device="xla")
    optimizer = optim.SGD([weight], lr=0.5)
    with counts() as moved:
        result = xm.optimizer_step(optimizer, barrier=with_barrier, optimizer_args={"closure": lambda: 17})
    assert result == 17 and moved["MarkStep"] == with_barrier and moved.executions == with_barrier
    assert weight.tolist() == [0.5, 0.5]


# --- scalars ----------------------------------------------------------------------------------------------------------

SCALARS: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "mul": lambda x, s: x * s,
    "rsub": lambda x, s: s - x,
    "add alpha": lambda x, s: torch.add(x, x, alpha=s),
    "in place": lambda x, s: x.clone().mul_(s),
    "div": lambda x, s: x / s,
    "addcmul": lambda x, s: x.addcmul(x, x, value=s),
    "lerp": lambda x, s: x.lerp(x * 2, s),
    "fill": lambda x, s: torch.full_like(x, s) + x,
    "assign": lambda x, s: _assign(x, s),
    "clamp": lambda x, s: x.clamp(min=s),
    "compare": lambda x, s: (x > s).float(),
    "where": lambda x, s: torch.where(x > 1, x, s),
    "0-dim CPU tensor": lambda x, s: x * torch.tensor(s),
    "masked_fill": lambda x, s: x.masked_fill(x > 1, s),
}


def _assign(x: Tensor, s: float) -> Tensor:
    y = x.clone()
    y[1] = s
    return y


@pytest.mark.parametrize("name", SCALARS)
def test_a_scalar_is_an_operand(name: str) -> None:
    values = torch.rand(3) * 3
    x = values.to("xla")
    SCALARS[name](x, 3.5).cpu()
    with counts() as moved:
        for s in (4.5, 0.25, -7.0, 1e-30):
            got = SCALARS[name](x, s).cpu()
            torch.testing.assert_close(got, SCALARS[name](values, s), atol=1e-6, rtol=1e-6)
    assert (moved.compilations, moved["CachedSyncTensors"]) == (0, 4)


def test_integers_are_operands_too() -> None:
    x = torch.arange(3).to("xla")
    assert (x * 5).tolist() == [0, 5, 10]
    with counts() as moved:
        assert (x * 2**40).tolist() == [0, 2**40, 2**41]
    assert moved.compilations == 0


def test_zero_one_and_minus_one_are_constants() -> None:
    x = torch.rand(2, 2).to("xla")
    with counts() as moved:
        for s in (0.0, 1.0, -1.0, 2.0, 0.0, 1.0, -1.0, 3.0):
            (x + s).cpu()
    assert (moved["UncachedSyncTensors"], moved["CachedSyncTensors"]) == (4, 4)


def test_sizes_and_modes_are_not_operands() -> None:
    x = torch.rand(4, 4).to("xla")
    with counts() as moved:
        assert x.sum(0).cpu().shape == x.sum(1).cpu().shape
        assert not torch.equal((x**2).cpu(), (x**3).cpu())
    assert moved["UncachedSyncTensors"] == 4


def test_which_leaf_is_which_matters() -> None:
    x, y = torch.full((2,), 3.0).to("xla"), torch.full((2,), 4.0).to("xla")
    assert [(x + x)[0].item(), (x + y)[0].item(), (y - x)[0].item(), (x - y)[0].item()] == [6, 7, 1, -1]


def test_learning_rate_schedule() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)).to("xla")
    optimizer = optim.AdamW(model.parameters(), lr=0.1)
    schedule = optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=60)
    x = torch.randn(8, 4).to("xla")
    with counts() as moved:
        for _ in range(50):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.3)
            xm.optimizer_step(optimizer, barrier=True)
            schedule.step()
    assert moved.compilations <= 3
    assert moved["CachedSyncTensors"] + moved["UncachedSyncTensors"] == 50
    assert moved.fallbacks == set()


def test_program_cache_is_bounded() -> None:
    out = run_script(
        """
        import torch, torch_xla
        from torch_xla.debug import metrics as met
        x = torch.ones(3).to("xla")
        for op in (torch.exp, torch.sin, torch.cos, torch.cos, torch.sin, torch.exp):
            op(x).cpu()
            print(met.counter_value("UncachedSyncTensors"), met.counter_value("DestroyCompileHandles"))
        """,
        XLA_COMPILATION_CACHE_SIZE="2",
    )
    assert out.stdout.split("\n")[:-1] == ["1 None", "2 None", "3 1", "3 1", "3 1", "4 2"]
