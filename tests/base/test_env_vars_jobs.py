"""Environment variables of devices and jobs, each in a separate process. See test_env_vars.py."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.helpers import run_script


@dataclass(frozen=True)
class Effect:
    """Patterns in the output of the script: ``without`` the variable, and ``as_set`` if it has the value.

    None of the scripts starts a backend. ``rest`` is set in both processes.
    """

    value: str
    script: str
    without: str
    as_set: str
    rest: dict[str, str] = field(default_factory=dict)


_KIND = """
import torch, torch_xla
import torch_xla.runtime as xr
try:
    print(xr.device_type())
except RuntimeError as error:
    print(error)
"""
_SPAWN = """
import torch, torch_xla
import torch_xla.distributed.xla_multiprocessing as xmp
xmp.spawn(print, nprocs=1)
"""
_STEP = "torch_xla.core.xla_model::mark_step"
_TWO_WORKERS = """
import sys
from torch_xla.distributed import xla_dist
script = "echo {step} >&2; [ $RANK = 0 ] && {zero}; sleep 4"
sys.stderr = sys.stdout
print("ended with", xla_dist.main(["--local=2", "--max-restarts=0", "--", "bash", "-c", script]))
"""
_OF_TWO = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
_EVEN, _UNEVEN = (_TWO_WORKERS.format(step=_STEP, zero=zero) for zero in ("true", f"echo {_STEP} >&2"))
_HERE, _CLOUD = "^(CPU|CUDA)$", "10.0.0.2:8470"

_ELASTIC = "from torch_xla._engine.job import replicas; print(replicas.is_elastic())"
_GPUS = "from torch_xla._engine.device import hardware_detection; print(hardware_detection.gpu_count() == 3)"

ALONE = {
    "CUDA_VISIBLE_DEVICES": Effect("0,5,7", _GPUS, "^False$", "^True$"),
    "PJRT_DEVICE": Effect("TPU", _KIND, _HERE, "^TPU$"),
    "XRT_TPU_CONFIG": Effect("localservice;0;localhost:51011", _KIND, _HERE, "^TPU$"),
    "COLAB_TPU_ADDR": Effect(_CLOUD, _KIND, _HERE, "^COLAB_TPU_ADDR names a device .* no longer exist: .*PJRT_DEVICE="),
    "TORCH_XLA_DIST": Effect("here", _SPAWN, "^0$", "^1$", _OF_TWO),
    "TORCHELASTIC_MAX_RESTARTS": Effect("2", _ELASTIC, "^False$", "^True$", _OF_TWO),
    "XLA_EVEN_HEARTBEAT_TIMEOUT": Effect(
        "1",
        _EVEN,
        "^ended with 0$",
        r"made no step for \d+ s \(XLA_EVEN_HEARTBEAT_TIMEOUT=1\), .* have stopped, too.* 124$",
    ),
    "XLA_UNEVEN_HEARTBEAT_TIMEOUT": Effect("1", _UNEVEN, "^ended with 0$", "worker 1 has made no step .* 124$"),
}


@pytest.mark.parametrize("name", ALONE)
def test_effect(name: str) -> None:
    effect = ALONE[name]
    for pattern, more in ((effect.without, {}), (effect.as_set, {name: effect.value})):
        printed = run_script(effect.script, **effect.rest, **more).stdout.strip()
        assert re.search(pattern, printed, re.DOTALL), printed


_JOB = """
import torch, torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
both = torch.distributed.FileStore(os.environ["MEET"], 2)  # the ranks take different times to import
both.set(os.environ["RANK"], "here")
both.wait(["0", "1"])
x = torch.full((1,), 5.0 + xr.global_ordinal(), device="xla")
print(xm.all_gather(x).tolist(), xr.world_size(), xr.global_ordinal(), xr.local_ordinal(), xr.local_process_count())
try:
    if xr.global_ordinal() == 0:
        xm.rendezvous("alone")
except RuntimeError as error:
    print(error)
    both.set("done", "")
both.wait(["done"])  # stay alive until then: a rendezvous does not wait for a process that has ended
"""


def _own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not line.startswith("[Gloo]")]


def test_a_job_by_hand(tmp_path: Path) -> None:
    """TORCH_XLA_RENDEZVOUS_FILE, RANK etc. start a job; TORCH_XLA_RENDEZVOUS_TIMEOUT ends its waits."""
    shared = {
        "MEET": str(tmp_path / "meet"), "TORCH_XLA_RENDEZVOUS_FILE": str(tmp_path / "store"),
        "TORCH_XLA_RENDEZVOUS_TIMEOUT": "8", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
    }  # fmt: skip
    with ThreadPoolExecutor(2) as pool:
        ranks = [
            pool.submit(run_script, f"import os{_JOB}", **shared, RANK=str(rank), LOCAL_RANK=str(rank))
            for rank in range(2)
        ]
    zero, one = (_own_lines(rank.result().stdout) for rank in ranks)
    assert one == ["[5.0, 6.0] 2 1 1 2"]
    assert zero[0] == "[5.0, 6.0] 2 0 0 2"
    assert zero[1].startswith("rendezvous 'alone': replica 0 waited 8 s (TORCH_XLA_RENDEZVOUS_TIMEOUT) at ")


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    """TORCH_XLA_RENDEZVOUS_TIMEOUT ends the wait for a rank that uses no device, with a Python exception."""
    code = """
    import torch, torch_xla
    try:
        torch.ones(1, device="xla")
    except RuntimeError as error:
        print(error)
    """
    shared = {
        "TORCH_XLA_RENDEZVOUS_FILE": str(tmp_path / "store"),
        "TORCH_XLA_RENDEZVOUS_TIMEOUT": "1",
        "WORLD_SIZE": "3",
    }
    done = run_script(code, **shared, LOCAL_WORLD_SIZE="3", RANK="0", LOCAL_RANK="0")
    assert "rank 0 waited 1 s (TORCH_XLA_RENDEZVOUS_TIMEOUT) for rank 1, 2 of 3 to use its xla device" in done.stdout
