"""FSDP, tensor parallelism, memory and checkpoints against eager CPU torch, on one device and on four."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import large_programs
import pytest
from helpers import ROOT, run_script

CASES = [(program, count) for program in large_programs.PROGRAMS for count in (1, 4)]
RUN = "import sys; sys.path.insert(0, 'tests'); import sharded_programs as s, large_programs as p; "


@pytest.mark.parametrize(("program", "devices"), CASES, ids=[f"{p.__name__}-{n}" for p, n in CASES])
def test_values(program: Callable[[], None], devices: int) -> None:
    code = RUN + f"s.switched_on(p.{program.__name__}); print('done')"
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices), XLA_FALLBACK_WARN="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def _run(path: Path, steps: int, devices: int) -> subprocess.Popen[str]:
    code = RUN + f"import json; s.switched_on(lambda: print(json.dumps(p.checkpoint_run({str(path)!r}, {steps}))))"
    env = os.environ | {"PYTHONPATH": str(ROOT), "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    return subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def _losses(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate()
    assert process.returncode == 0
    found: list[float] = json.loads(out.splitlines()[-1])
    return found


def test_meshes_of_several_sizes_and_kills(tmp_path: Path) -> None:
    """A run on 4 devices, killed at random, goes on with 2, is killed, and ends on 1: the losses of an undisturbed one."""
    steps = 60
    whole = _losses(_run(tmp_path / "whole", steps, 4))
    for devices in (4, 2):
        process = _run(tmp_path / "cut", steps, devices)
        folder, seen = tmp_path / "cut", len(list((tmp_path / "cut").glob("[0-9]*")))
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and len(list(folder.glob("[0-9]*"))) <= seen < 3 and process.poll() is None:
            time.sleep(0.01)
        time.sleep(random.random() / 5)
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert _losses(_run(tmp_path / "cut", steps, 1)) == pytest.approx(whole, rel=1e-4)


PREEMPTED = """
import os, signal
from torch_xla.experimental.distributed_checkpoint import CheckpointManager
manager = CheckpointManager({path!r}, save_interval=100)
for step in range(1, 10):
    if step == 3:
        os.kill(os.getpid(), signal.SIGTERM)
    manager.save_async(step, {{"step": step}})
    if manager.reached_preemption(step):
        break
manager.join()
print(step, manager.all_steps())
state = {{"step": 0}}
manager.restore(3, state)
print(state)
quiet = CheckpointManager({path!r}, save_interval=100, chkpt_on_preemption=False)
try:
    quiet.reached_preemption(1)
except RuntimeError as error:
    print(error)
"""


def test_preemption(tmp_path: Path) -> None:
    done = run_script(PREEMPTED.format(path=str(tmp_path)), check=False, PJRT_DEVICE="CPU")
    assert done.returncode == 0 and done.stderr == "SIGTERM: step 3 is the last one\n", done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("3 [3]", "{'step': 3}") and "chkpt_on_preemption=False" in third
