"""Edge cases of torch that do not name a device: pinned memory, nn.utils, optimizer options."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune, rnn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
from tests.support.helpers import counts
from torch_xla.distributed.parallel_loader import MpDeviceLoader
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true but no accelerator")  # torch's, of xla, too
def test_loader_that_pins() -> None:
    """Pinned memory is not supported for xla, as torch warns; values arrive with .to and with MpDeviceLoader."""
    loader = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True)
    by_hand = [batch.to("xla", non_blocking=True) for (batch,) in loader]
    ours = [batch for (batch,) in MpDeviceLoader(loader, torch.device("xla"))]
    assert [b.tolist() for b in by_hand] == [b.tolist() for b in ours] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert {b.device.type for b in (*by_hand, *ours)} == {"xla"} and not by_hand[0].is_pinned()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2))


def _trained(model: nn.Module, device: str) -> list[Tensor]:
    """Return loss, gradients and parameters after a step."""
    x = torch.linspace(-1, 1, 12).reshape(3, 4).to(device)
    loss = model(x).square().sum()
    loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return [loss, *(p.grad for p in model.parameters() if p.grad is not None), *model.parameters()]


def _vectors(model: nn.Module, device: str) -> list[Tensor]:
    vector = nn.utils.parameters_to_vector(model.parameters())
    nn.utils.vector_to_parameters(vector * 2, model.parameters())
    return [vector, *_trained(model, device)]


def _norms(model: nn.Module, device: str) -> list[Tensor]:
    _trained(model, device)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    total = nn.utils.get_total_norm(grads)
    nn.utils.clip_grads_with_norm_(model.parameters(), 0.1, total)
    return [total, *grads]


def _pruned(model: Any, device: str) -> list[Tensor]:
    prune.l1_unstructured(model[0], "weight", amount=0.5)
    prune.ln_structured(model[2], "weight", amount=1, n=2, dim=0)
    found = _trained(model, device)
    prune.remove(model[0], "weight")
    return [*found, *model[0].parameters()]


def _with(change: Callable[[Any], object]) -> Callable[[nn.Module, str], list[Tensor]]:
    def run(model: Any, device: str) -> list[Tensor]:
        change(model[0])
        return _trained(model, device)

    return run


def _fused(model: Any, device: str) -> list[Tensor]:
    torch.manual_seed(1)
    both = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    both[1].running_mean, both[1].running_var = torch.randn(3), torch.rand(3) + 0.5
    both.to(device)
    return list(nn.utils.fuse_conv_bn_eval(both[0], both[1]).parameters())


def _packed(model: Any, device: str) -> list[Tensor]:
    torch.manual_seed(1)
    lstm = nn.LSTM(3, 4, batch_first=True).to(device)
    rows = [torch.ones(n, 3, device=device) * n for n in (5, 3, 1)]
    packed = rnn.pack_padded_sequence(rnn.pad_sequence(rows, batch_first=True), torch.tensor([5, 3, 1]), True)
    out, lengths = rnn.pad_packed_sequence(lstm(packed)[0], batch_first=True)
    return [out, lengths]


UTILS: dict[str, Callable[[nn.Module, str], list[Tensor]]] = {
    "vectors": _vectors,
    "norms": _norms,
    "prune": _pruned,
    "weight_norm": _with(parametrizations.weight_norm),
    "orthogonal": _with(lambda layer: parametrizations.orthogonal(layer, orthogonal_map="cayley")),
    "fuse_conv_bn_eval": _fused,
    "packed sequences": _packed,
}


@pytest.mark.parametrize("name", UTILS)
def test_nn_utils(name: str) -> None:
    """The CPU's values, on xla."""
    there = UTILS[name](network(), "cpu")
    torch.manual_seed(0)
    model = network().to("xla")
    with counts() as moved:
        here = UTILS[name](model, "xla")
    assert not moved.fallbacks - {"aten::linalg_qr", "aten::linalg_solve_ex"}
    lengths = name == "packed sequences"  # torch computes these on the CPU
    assert {value.device.type for value in here} <= ({"xla", "cpu"} if lengths else {"xla"})
    torch.testing.assert_close([v.cpu() for v in here], there, rtol=1e-4, atol=1e-5)


#: Options that select the implementation of an optimizer.
CHOICES: dict[str, dict[str, bool]] = {
    "capturable": {"capturable": True},
    "capturable, one by one": {"capturable": True, "foreach": False},
    "foreach": {"foreach": True},
    "one by one": {"foreach": False},
    "fused": {"fused": True},
}
_TAKEN = {
    torch.optim.Adam: CHOICES.keys(),
    torch.optim.AdamW: CHOICES.keys(),
    torch.optim.SGD: CHOICES.keys() - {"capturable", "capturable, one by one"},
    torch.optim.RMSprop: CHOICES.keys() - {"fused"},
    torch.optim.NAdam: CHOICES.keys() - {"fused"},
}


@pytest.mark.parametrize(("kind", "choice"), [(k, c) for k, taken in _TAKEN.items() for c in CHOICES if c in taken])
def test_optimizer_options(kind: Any, choice: str) -> None:
    """Training matches the CPU without the option; nothing is compiled after the second step."""
    model = network()
    here = copy.deepcopy(model).to("xla")
    optimizers = kind(model.parameters(), lr=0.05), kind(here.parameters(), lr=0.05, **CHOICES[choice])
    x = torch.linspace(-1, 1, 12).reshape(3, 4)
    compiled = []
    for _ in range(4):
        with counts() as moved:
            for net, optimizer, rows in ((model, optimizers[0], x), (here, optimizers[1], x.to("xla"))):
                net(rows).square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            torch_xla.sync()
        assert not moved.fallbacks
        compiled.append(moved.compilations)
    assert compiled[2:] == [0, 0]
    torch.testing.assert_close([p.cpu() for p in here.parameters()], list(model.parameters()), rtol=1e-5, atol=1e-6)


def test_lazily_created_shards() -> None:
    """ZeRO with lazy_init, and a schedule created before the shards: rates apply; a failed step has no effect."""
    here = network().to("xla")
    there = copy.deepcopy(here).to("cpu")
    optimizer = ZeroRedundancyOptimizer(
        here.parameters(), torch.optim.Adam, lr=0.1, lazy_init=True, grad_clipping=False
    )
    plain = torch.optim.Adam(there.parameters(), lr=0.1)
    schedules = [torch.optim.lr_scheduler.StepLR(o, 1, 0.5) for o in (optimizer, plain)]
    with pytest.raises(RuntimeError, match="requires init_zero"):
        optimizer.step()
    optimizer.init_zero()
    for _ in range(3):
        for model, chosen, schedule in ((here, optimizer, schedules[0]), (there, plain, schedules[1])):
            model(torch.ones(3, 4, device=next(model.parameters()).device)).square().sum().backward()
            chosen.step()
            schedule.step()
            chosen.zero_grad()
        torch_xla.sync()
    torch.testing.assert_close([p.cpu() for p in here.parameters()], list(there.parameters()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("order", ["model, optimizer", "optimizer, model", "model", "data, optimizer"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_loaded_after_sharding(order: str, dtype: torch.dtype) -> None:
    """ZeRO uses parameters that were written after its construction, in any order; a step starts from them."""

    def made() -> tuple[torch.nn.Module, ZeroRedundancyOptimizer]:
        model = torch.nn.Linear(4, 3).to("xla", dtype)
        return model, ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.Adam, lr=1e-6, grad_clipping=False, save_master_weights="data" not in order
        )

    def step(model: torch.nn.Module, optimizer: ZeroRedundancyOptimizer) -> None:
        model(torch.ones(2, 4, device="xla", dtype=dtype)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        torch_xla.sync()

    trained, fresh = made(), made()
    step(*trained)
    weights = {name: value.cpu() for name, value in trained[0].state_dict().items()}
    for name in order.split(", "):
        if name == "data":
            for parameter, value in zip(fresh[0].parameters(), weights.values(), strict=True):
                parameter.data.copy_(value)
        else:
            fresh[name == "optimizer"].load_state_dict(trained[name == "optimizer"].state_dict())
    step(*fresh)
    for name, value in fresh[0].state_dict().items():
        torch.testing.assert_close(value.cpu(), weights[name], rtol=1e-2, atol=1e-5)
    if order.endswith("model") and order != "model":  # digits of the master weights beyond bfloat16 are retained
        step(*trained)
        shares = [[share.cpu() for group in one[1]._shares for share in group] for one in (fresh, trained)]
        torch.testing.assert_close(*shares, rtol=0, atol=1e-8)
