"""torch.accelerator on xla, and torch's own callers in scripts that only use the CPU."""

from __future__ import annotations

import pytest
import torch

import torch_xla
from tests.support.helpers import run_script

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="another accelerator is chosen")

#: Names of torch.accelerator that are not checked below, and why.
UNCHECKED = {
    "Graph": "graphs of streams do not exist on xla",
    "current_device_idx": "deprecated",
    "set_device_idx": "deprecated",
}


def test_every_public_name_works() -> None:
    a = torch.accelerator
    x = torch.ones(1 << 18, device=a.current_accelerator())
    torch_xla.sync(wait=True)
    event = torch.xla.Event()
    checks = {
        "is_available": lambda: a.is_available(),
        "current_accelerator": lambda: (
            a.current_accelerator(check_available=True) == torch.device("xla") == x.device
            or a.current_accelerator().type == x.device.type
        ),
        "device_count": lambda: a.device_count() == torch_xla.device_count(),
        "current_device_index": lambda: a.current_device_index() == 0,
        "set_device_index": lambda: a.set_device_index("xla:0") is None,
        "device_index": lambda: a.device_index(0).__enter__() is None,
        "synchronize": lambda: a.synchronize() is None and a.synchronize("xla:0") is None,
        "current_stream": lambda: a.current_stream() == torch.xla.Stream(),
        "set_stream": lambda: a.set_stream(a.current_stream()) is None,
        "get_device_capability": lambda: torch.bfloat16 in a.get_device_capability()["supported_dtypes"],
        "empty_cache": lambda: a.empty_cache() is None,
        "empty_host_cache": lambda: a.empty_host_cache() is None,
        "memory_stats": lambda: a.memory_stats()["allocated_bytes.all.current"] >= x.nbytes,
        "memory_allocated": lambda: a.memory_allocated() >= x.nbytes,
        "memory_reserved": lambda: a.memory_reserved() >= x.nbytes,
        "max_memory_allocated": lambda: a.max_memory_allocated() >= a.memory_allocated(),
        "max_memory_reserved": lambda: a.max_memory_reserved() >= a.memory_reserved(),
        "reset_accumulated_memory_stats": lambda: a.reset_accumulated_memory_stats() is None,
        "reset_peak_memory_stats": lambda: a.reset_peak_memory_stats() is None,
        "get_memory_info": lambda: 0 < a.get_memory_info()[0] <= a.get_memory_info()[1],
    }
    assert set(a.__all__) - {"memory"} - set(checks) - set(UNCHECKED) == set()
    assert [name for name, check in checks.items() if name in a.__all__ and not check()] == []
    a.current_stream().record_event(event)
    a.synchronize()
    assert event.query()
    assert torch._utils._get_available_device_type() == "xla"
    with pytest.raises(ValueError, match="doesn't match the current accelerator"):
        a.synchronize("cuda:0")


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
    without = run_script(CPU_SCRIPT.format(imports=False), fresh="torch_xla must not be imported").stdout.splitlines()
    lines = run_script(CPU_SCRIPT.format(imports=True), fresh="compared with a fresh process").stdout.splitlines()
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
