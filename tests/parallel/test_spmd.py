"""SPMD: tensors sharded over four devices behind one xla device, and over two processes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.programs import spmd_programs
from tests.support import scripts
from tests.support.helpers import run_script


@pytest.mark.parametrize("name", [program.__name__ for program in spmd_programs.PROGRAMS])
def test_four_devices(name: str) -> None:
    code = f"from tests.programs import spmd_programs; spmd_programs.{name}(); print('done')"
    # stderr has explanations of recompilations, because the ways to train differ.
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4", TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


TORCHRUN = [*scripts.PYTHON, "-m", "torch.distributed.run"]


def _torchrun(*script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TORCHRUN, "--nproc-per-node=2", "--standalone", "--no-python", *scripts.PYTHON, *script],
        env=os.environ | scripts.server_variables() | {"PJRT_DEVICE": "CPU"} | env,
        capture_output=True,
        text=True,
    )


def test_two_processes() -> None:
    done = _torchrun("-m", "tests.programs.spmd_programs", CPU_NUM_DEVICES="2")
    assert done.returncode == 0 and done.stdout.count("rank done") == 2, done.stderr


DIFFERING = """
import torch, torch_xla, torch_xla.runtime as xr
xr.use_spmd()
x = torch.ones(4, 4).to("xla")
for _ in range(2):
    x.mul_(2)
    torch_xla.sync()
y = x.sin() if xr.process_index() else x.cos()
print(y.sum().item())
"""


def test_processes_with_different_programs(tmp_path: Path) -> None:
    """Each rank waits in a different program: the watchdog reports the difference, and the job ends."""
    script = tmp_path / "script.py"
    script.write_text(DIFFERING)
    done = _torchrun(str(script), CPU_NUM_DEVICES="1")
    assert done.returncode != 0
    assert "aten::sin() -> float32[4, 4]" in done.stderr and "aten::cos() -> float32[4, 4]" in done.stderr


TWICE = """
import torch, torch_xla, torch_xla.runtime as xr
import torch_xla.debug.metrics as met
import torch_xla.distributed.spmd as xs
xr.use_spmd()
x = xs.mark_sharding(torch.arange(8.0).to("xla"), xs.Mesh(range(4), (4,), ("data",)), ("data",))
print((x * x).sum().item(), len(xs.get_sharding(x).device_set), met.counter_value("PersistentCacheHit"))
"""


def test_programs_are_cached(tmp_path: Path) -> None:
    lines = [
        run_script(TWICE, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4", XLA_PERSISTENT_CACHE_PATH=str(tmp_path)).stdout
        for _ in range(2)
    ]
    assert lines == ["140.0 4 None\n", "140.0 4 1\n"]
