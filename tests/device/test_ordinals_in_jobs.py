"""In a job of one device per process, ``xla:LOCAL_RANK`` does not exist on rank 1; the error says what to write."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.helpers import run_script

JOB = """
import os
import torch, torch_xla
import torch_xla.runtime as xr

rank = int(os.environ["LOCAL_RANK"])
name = f"xla:{rank}"
torch.save(torch.ones(2, device="xla"), PATH + name)
calls = {
    "factory": lambda: torch.ones(2, device=torch.device(name)),
    "to": lambda: torch.ones(2).to(name),
    "module": lambda: torch.nn.Linear(2, 2).to(name),
    "default": lambda: torch.set_default_device(name) or torch.ones(2),
    "torch.xla": lambda: torch.xla.set_device(rank),
    "accelerator": lambda: torch.accelerator.set_device_index(rank),
    "torch_xla": lambda: torch_xla.device(rank),
    "attributes": lambda: xr.runtime_device_attributes(name),
    "load": lambda: torch.load(PATH + name, map_location=name),
}
for key, call in calls.items():
    try:
        call()
    except RuntimeError as error:
        print(key, "|", error)
    torch.set_default_device(None)
assert torch.ones(2, device="xla").sum().item() == 2
"""

ADVICE = (
    "It is rank 1 of a job of 2 processes, and each process sees only its own device, as xla:0: "
    'write device="xla" in every process, without the local rank.'
)


def test_the_local_rank_is_not_an_ordinal(tmp_path: Path) -> None:
    job = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCH_XLA_RENDEZVOUS_FILE": str(tmp_path / "store")}
    code = JOB.replace("PATH", repr(str(tmp_path / "tensor")))
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda rank: run_script(code, **job, RANK=rank, LOCAL_RANK=rank), "01")
    assert first.stdout == ""
    raised = dict(line.split(" | ") for line in second.stdout.splitlines())
    loaded, attributes = raised.pop("load"), raised.pop("attributes")
    assert "map_location names xla:1, which does not exist" in loaded and "map_location='xla:0'" in loaded
    assert attributes == f"runtime_device_attributes: xla:1 does not exist; this process has 1 xla device(s). {ADVICE}"
    message = f"xla:1 does not exist: this process has 1 xla device (xla:0). {ADVICE}"
    assert raised == dict.fromkeys(
        ["factory", "to", "module", "default", "torch.xla", "accelerator", "torch_xla"], message
    )
