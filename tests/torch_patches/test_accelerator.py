"""torch.accelerator on xla, and torch's own callers in scripts that only use the CPU."""

from __future__ import annotations

import pytest
import torch

from tests.support.helpers import run_script

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="another accelerator is chosen")


def test_the_accelerator_is_xla() -> None:
    x = torch.ones(3, device=torch.accelerator.current_accelerator())
    assert x.device.type == "xla" and torch._utils._get_available_device_type() == "xla"
    event = torch.xla.Event()
    torch.accelerator.current_stream().record_event(event)
    torch.accelerator.synchronize("xla:0")
    assert event.query()
    with pytest.raises(ValueError, match="doesn't match the current accelerator"):
        torch.accelerator.synchronize("cuda:0")


CPU_SCRIPT = """
import warnings
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset
if {imports}:
    import torch_xla

torch.manual_seed(0)
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    loader = DataLoader(TensorDataset(torch.randn(8, 4)), batch_size=4, pin_memory=True)
    model = torch.nn.DataParallel(torch.nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    for (x,) in loader:
        with torch.random.fork_rng():
            torch.rand(3)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = checkpoint(lambda x: F.dropout(model(x)), x, use_reentrant=False)
        y.float().sum().backward()
        optimizer.step()
        print(y.device, x.is_pinned(), y.float().sum().item(), torch.rand(1).item())
print([str(w.message) for w in seen])
if {imports}:
    from torch_xla._engine.device import devices
    print(torch.accelerator.current_accelerator(), torch.accelerator.is_available())
    print(torch.accelerator.memory_allocated(), devices.backend_started())
"""


def test_cpu_scripts_do_what_they_do_without_torch_xla() -> None:
    without = run_script(CPU_SCRIPT.format(imports=False), imports="torch_xla must not be imported").stdout.splitlines()
    lines = run_script(
        CPU_SCRIPT.format(imports=True), imports="compared with one that does not import torch_xla"
    ).stdout.splitlines()
    assert lines[: len(without)] == without and "pin_memory" in without[-1]
    assert lines[len(without) :] == ["xla True", "0 False"]


COMPILED = """
import torch
import torch_xla
model = torch.nn.Linear(3, 2)
compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
compiled(torch.ones(4, 3)).sum().backward()
print(torch.compile(lambda: torch.accelerator.current_accelerator(), backend="eager")())
"""


def test_dynamo_does_not_trace_the_wrappers() -> None:
    assert run_script(COMPILED, PJRT_DEVICE="CPU").stdout.split() == ["xla"]


PINNED = """
import torch, torch_xla
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.arange(4.0))
device = {device}
for workers in (0, 2):
    loader = DataLoader(data, batch_size=2, pin_memory=True, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(2):
        print([(x.to(device).sum().item(), x.is_pinned(), x.device.type) for (x,) in loader])
"""


@pytest.mark.parametrize("device", ["torch.accelerator.current_accelerator()", "torch.ones(1, device='xla').device"])
def test_pinned_memory_has_no_effect_and_does_not_warn(device: str) -> None:
    done = run_script(PINNED.format(device=device))
    assert done.stdout.splitlines() == ["[(1.0, False, 'cpu'), (5.0, False, 'cpu')]"] * 4
    assert done.stderr == ""
