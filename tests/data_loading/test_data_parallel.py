"""DataParallel training in threads: weights as on one device with the joined batch, result order, errors, shutdown."""

from __future__ import annotations

import functools
import inspect
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import torch_xla.distributed.data_parallel as dp
from tests.support.helpers import run_script
from torch_xla.distributed import _enumerated_loader
from torch_xla.distributed._enumerated_loader import expects_enumerated

TRAINING = """
import copy, threading, sys
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.debug.metrics as met
import torch_xla.distributed.data_parallel as dp
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
devices = xm.get_xla_supported_devices()
n = len(devices)
X, Y = torch.randn(8 * n + 1, 5), torch.randn(8 * n + 1, 3)
loader = DataLoader(TensorDataset(X, Y), 2)
net = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
"""


@pytest.mark.parametrize("count", [2, 4])
def test_same_weights_as_the_joined_batch(count: int) -> None:
    out = run_script(
        TRAINING
        + """
parallel = dp.DataParallel(net, device_ids=devices)
kept = []

def train(model, loader, device, context):
    optimizer = context.getattr_or("optimizer", lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    steps = 0
    for x, y in loader:
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        steps += 1
        if xm.is_master_ordinal():
            kept.append(loss.detach())  # only here: the graphs of the replicas differ
    assert x.device == device == xm.xla_device() and str(device) == devices[xr.global_ordinal()]
    return steps, xr.global_ordinal(), xr.world_size(), xm.mesh_reduce("steps", steps, sum)

for epoch in range(3):
    results = parallel(train, loader)
    if epoch == 0:
        compiled = met.metric_data("CompileTime")[0]
print(results == [(4, i, n, 4 * n) for i in range(n)], met.metric_data("CompileTime")[0] - compiled)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for _ in range(3):
    for i in range(0, 8 * n, 2 * n):
        optimizer.zero_grad()
        ((net(X[i : i + 2 * n]) - Y[i : i + 2 * n]) ** 2).mean().backward()
        optimizer.step()
for model in parallel.models:
    for p, q in zip(model.parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(p.cpu(), q, rtol=1e-5, atol=1e-6)
print(len(kept), parallel.devices == devices, [t.name for t in threading.enumerate() if "ends of" not in t.name])
""",
        CPU_NUM_DEVICES=str(count),
        PJRT_DEVICE="CPU",
    )
    assert out.stdout == "True 0\n12 True ['MainThread']\n"


def test_collectives_and_faults_among_threads() -> None:
    out = run_script(
        TRAINING
        + """
parallel = dp.DataParallel(lambda: torch.nn.Linear(1, 1))

def exchange(model, loader, device, context):
    i = device.index
    for _ in range(30):
        x = torch.arange(3.0, device=device) + i
        total = xm.all_reduce("sum", x)
        assert total.tolist() == [3, 6, 9], total
        assert xm.all_gather(x[:1]).tolist() == [0, 1, 2]
        tensors = [x.clone(), (x * 2).to(torch.int64)]
        xm.all_reduce("max", tensors, scale=0.5)
        assert tensors[0].tolist() == [1, 1.5, 2] and tensors[1].tolist() == [2, 3, 4]
        xm.collective_broadcast([x], root_ordinal=1)
        assert x.tolist() == [1, 2, 3]
        assert xm.collective_permute(x * i, [[0, 1], [1, 2], [2, 0]]).tolist() == (x.cpu() * ((i - 1) % 3)).tolist()
    return [bytes(b) for b in xm.rendezvous("here", b"%d" % i)]

print(parallel(exchange, []))

def attempt(loop):
    try:
        parallel(loop, loader)
    except Exception as error:
        import traceback
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        print(type(error).__name__, str(error)[:60].replace("torch_xla::", ""), loop.__name__ in frames)

def raises(model, loader, device, context):
    for i, batch in enumerate(loader):
        if device.index == 1 and i == 1:
            raise KeyError("mine")
        xm.all_reduce("sum", [batch[0]])

def raises_without_collectives(model, loader, device, context):
    for i, batch in enumerate(loader):
        if device.index == 2:
            raise KeyError("mine, too")

def leaves(model, loader, device, context):
    for i, (x, y) in enumerate(loader):
        if device.index == 0 and i == 1:
            return
        xm.rendezvous("each")

def differs(model, loader, device, context):
    xm.all_reduce("sum", [torch.ones(2 + device.index % 2, device=device)])

def fails_in_the_loader(model, loader, device, context):
    for batch in loader:
        pass

for loop in (raises, raises_without_collectives, leaves, differs):
    attempt(loop)
loader = (torch.ones(1) if i < 4 else 1 / 0 for i in range(9))
attempt(fails_in_the_loader)
print([t.name for t in threading.enumerate() if "ends of" not in t.name])
print(parallel(lambda model, loader, device, context: str(device), []))
""",
        TORCH_XLA_EXPLAIN_RECOMPILATIONS="0",  # each thread compiles different programs at the same lines
        CPU_NUM_DEVICES="3",
        PJRT_DEVICE="CPU",
    )
    assert out.stdout.splitlines() == [
        str([[b"0", b"1", b"2"]] * 3),
        "KeyError 'mine' True",
        "KeyError 'mine, too' True",
        "AbandonedError rendezvous 'each': replica 0 has returned, and the others wa True",
        "RuntimeError replicas reached different synchronization points: replica 0 True",
        "ZeroDivisionError division by zero True",
        "['MainThread']",
        "['xla:0', 'xla:1', 'xla:2']",
    ]


def test_native_run() -> None:
    module = nn.Linear(2, 1)
    parallel = dp.DataParallel(module, device_ids=[])
    batches = [torch.ones(1, 2)] * 3

    def loop(model: nn.Module, loader: Any, device: torch.device, context: dp.Context) -> list[Any]:
        calls = context.getattr_or("calls", list)
        calls.extend(model(x) for x in loader)
        return [model, device, context.getattr_or("calls", None), context.device]

    parallel(loop, batches)
    ((model, device, calls, same),) = parallel(loop, batches)
    assert model is module and parallel.models == [module] and parallel.devices == []
    assert device == same == torch.device("cpu") and len(calls) == 6
    with pytest.raises(ZeroDivisionError):
        parallel(lambda *_: 1 / 0, batches)
    mixed = nn.ModuleList([nn.Linear(1, 1), nn.Linear(1, 1, device="meta")])
    with pytest.raises(RuntimeError, match=r"^Model uses more than one device: \['cpu', 'meta'\]"):
        dp.DataParallel(mixed, device_ids=[])
    with pytest.raises(ValueError, match=r"^DataParallel: device_ids=\['cpu'\] must be xla devices"):
        dp.DataParallel(module, device_ids=["cpu"])


def test_one_device() -> None:
    parallel = dp.DataParallel(nn.Linear(2, 1), device_ids=["xla:0"])

    def loop(model: nn.Module, loader: Any, device: torch.device, context: dp.Context) -> Any:
        return [model(x).shape for x in loader], len(loader), device

    assert parallel(loop, [torch.ones(3, 2)] * 2) == [([(3, 1)] * 2, 2, torch.device("xla:0"))]


def numbered(model: Any, loader: Any, device: Any, context: Any) -> list[Any]:
    seen = []
    for _, (data, target) in loader:
        seen.append((_, data.tolist(), target.tolist()))
    return seen


def plain(model: Any, loader: Any, device: Any, context: Any) -> list[Any]:
    seen = []
    for data, target in loader:
        seen.append((data.tolist(), target.tolist()))
    return seen


def enumerated(model: Any, loader: Any, device: Any, context: Any) -> list[Any]:
    seen = []
    for i, (data, target) in enumerate(loader):
        seen.append((i, data.tolist(), target.tolist()))
    return seen


@pytest.mark.parametrize("device_ids", [[], ["xla:0"]])
def test_loops_of_2019_get_numbers(device_ids: list[str]) -> None:
    parallel = dp.DataParallel(nn.Linear(1, 1), device_ids=device_ids)
    batches = [[torch.tensor([1.0]), torch.tensor([2])], [torch.tensor([3.0]), torch.tensor([4])]]
    expected = [(0, [1.0], [2]), (1, [3.0], [4])]
    assert parallel(numbered, batches) == parallel(enumerated, batches) == [expected]
    assert parallel(functools.partial(numbered), batches) == [expected]
    assert parallel(plain, batches) == [[row[1:] for row in expected]]
    nested = [(torch.tensor([0.0]), batch) for batch in batches]  # nested pairs, flattened as they are
    assert [row[0].tolist() for row in parallel(numbered, nested)[0]] == [[0.0]] * 2


def closure(model: Any, loader: Any, device: Any, context: Any) -> int:
    count = 0
    for _, (_data, _target) in loader:
        count = (lambda: len(loader))()
    return count


LOOPS = [(numbered, True), (closure, True), (plain, False), (enumerated, False)]


@pytest.mark.parametrize(("loop", "wanted"), [*LOOPS, (print, False)])
def test_which_loops_want_numbers(loop: Callable[..., Any], wanted: bool) -> None:
    assert expects_enumerated(loop) is wanted


@pytest.mark.parametrize("python", ["python3.12", "python3.13", "python3.14"])
def test_which_loops_want_numbers_on_other_pythons(python: str) -> None:
    """The module imports only the standard library, so that an interpreter without torch can run it."""
    if shutil.which(python) is None or subprocess.run([python, "--version"], capture_output=True).returncode:
        pytest.skip(f"there is no {python} here")
    sources = "\n".join(inspect.getsource(loop) for loop, _ in LOOPS)
    names = ", ".join(loop.__name__ for loop, _ in LOOPS)
    check = f"""
from typing import Any
exec(open({_enumerated_loader.__file__!r}).read())
{sources}
print([wants_numbers(loop) for loop in ({names})])
"""
    done = subprocess.run([python, "-c", check], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == (f"{[wanted for _, wanted in LOOPS]}\n", "")
