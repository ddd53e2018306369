"""SPMD: one device in front of four, tensors spread over them; and the same over two processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import spmd_programs
from helpers import ROOT, run_script


@pytest.mark.parametrize("name", [program.__name__ for program in spmd_programs.PROGRAMS])
def test_four_devices(name: str) -> None:
    code = f"import sys; sys.path.insert(0, 'tests'); import spmd_programs; spmd_programs.{name}(); print('done')"
    # What is said on stderr is that several ways to train are several programs.
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES="4", XLA_FALLBACK_WARN="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def test_two_processes() -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    done = subprocess.run(
        [*launcher, str(ROOT / "tests" / "spmd_programs.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "2"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and done.stdout.count("rank done") == 2, done.stderr
