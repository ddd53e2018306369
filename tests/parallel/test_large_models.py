"""FSDP, tensor parallelism, memory and checkpoints against eager CPU torch, on one device and on four."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.programs import large_model_programs
from tests.support import scripts
from tests.support.helpers import ROOT, run_script

#: A mesh of one device runs the same code with less of it: only a sweep.
CASES = [
    pytest.param(program, count, id=f"{program.__name__}-{count}", marks=[pytest.mark.sweep] if count == 1 else [])
    for program in large_model_programs.PROGRAMS
    for count in (1, 4)
]
RUN = "from tests.programs import sharded_programs as s, large_model_programs as p; "


@pytest.mark.parametrize(("program", "devices"), CASES)
def test_values(program: Callable[[], None], devices: int) -> None:
    code = RUN + f"s.switched_on(p.{program.__name__}); print('done')"
    done = run_script(code, check=False, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices), TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.stderr


def _run(path: Path, steps: int, devices: int) -> subprocess.Popen[str]:
    code = RUN + f"import json; s.switched_on(lambda: print(json.dumps(p.checkpoint_run({str(path)!r}, {steps}))))"
    env = os.environ | scripts.server_variables() | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices)}
    return subprocess.Popen([*scripts.PYTHON, "-c", code], cwd=ROOT, env=env, stdout=subprocess.PIPE, text=True)


def _losses(process: subprocess.Popen[str]) -> list[float]:
    out, _ = process.communicate()
    assert process.returncode == 0
    found: list[float] = json.loads(out.splitlines()[-1])
    return found


def test_resume_on_meshes_of_several_sizes(tmp_path: Path) -> None:
    """A run on 4 devices is killed, resumes on 2, is killed, and ends on 1, with the losses of a single device."""
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


JOB = """
import sys
import torch_xla
from tests.programs import large_model_programs
large_model_programs.checkpoint_job({path!r}, {steps}, {kill_at})
"""


def test_processes_killed_while_saving(tmp_path: Path) -> None:
    """Two processes, one killed while both save, then four, then one: all earlier checkpoints are complete."""

    def job(count: int, steps: int, kill_at: int = 0) -> tuple[int, list[list[float]], str]:
        (tmp_path / "job.py").write_text(JOB.format(path=str(tmp_path / "run"), steps=steps, kill_at=kill_at))
        torchrun = [*scripts.PYTHON, "-m", "torch.distributed.run", f"--nproc-per-node={count}", "--standalone"]
        env = os.environ | scripts.server_variables() | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(4 // count)}
        done = subprocess.run(
            [*torchrun, "--no-python", *scripts.PYTHON, str(tmp_path / "job.py")], cwd=ROOT, env=env,
            capture_output=True, text=True,
        )  # fmt: skip
        return done.returncode, [json.loads(file.read_text()) for file in tmp_path.glob("run.losses.*")], done.stderr

    def alone(name: str, devices: int) -> list[float]:
        call = f"p.checkpoint_run({str(tmp_path / name)!r}, 12)"
        code = RUN + f"import json; s.switched_on(lambda: print(json.dumps({call})))"
        found: list[float] = json.loads(run_script(code, PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices)).stdout)
        return found

    whole = alone("whole", 4)
    code, losses, error = job(2, 12, kill_at=6)
    assert code != 0 and "SIGKILL" in error and not losses, error
    assert sorted(p.name for p in (tmp_path / "run").glob("[0-9]*")) == ["2", "4"]
    # Step 6 left nothing, or a folder that the next job removes: the first process may have ended, too.
    code, losses, error = job(4, 8)
    assert code == 0 and losses == [pytest.approx(whole[:8], rel=1e-4)] * 4, error
    assert sorted(p.name for p in (tmp_path / "run").iterdir()) == ["4", "6", "8"]
    assert alone("run", 1) == pytest.approx(whole, rel=1e-4)


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
    assert done.returncode == 0 and done.stderr == "SIGTERM: stopping after step 3\n", done.stderr
    first, second, third = done.stdout.splitlines()
    assert (first, second) == ("3 [3]", "{'step': 3}") and "chkpt_on_preemption=False" in third


SPAWN = """
from tests.programs import fsdp_zero_programs
import torch_xla.distributed.xla_multiprocessing as xmp
xmp.spawn(fsdp_zero_programs.{name}, nprocs={count}, start_method="fork")
"""


@pytest.mark.parametrize(
    "count", [pytest.param(1, marks=pytest.mark.sweep), 2, pytest.param(4, marks=pytest.mark.sweep)]
)
@pytest.mark.parametrize("name", ["fsdp", "zero"])
def test_replicas(name: str, count: int) -> None:
    done = run_script(SPAWN.format(name=name, count=count), False, PJRT_DEVICE="CPU", TORCH_XLA_WARN_FALLBACK="0")
    assert done.returncode == 0 and done.stdout.count("done") == count, done.stderr


FULLY_SHARD = """
from tests.programs import fully_shard_programs
import torch_xla.distributed.xla_multiprocessing as xmp
xmp.spawn(fully_shard_programs.everything, args=({folder!r},), nprocs={count}, start_method="fork")
"""


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.sweep)])
def test_fully_shard(count: int, tmp_path: Path) -> None:
    code = FULLY_SHARD.format(count=count, folder=str(tmp_path / "checkpoint"))
    done = run_script(code, False, PJRT_DEVICE="CPU", TORCH_XLA_EXPLAIN_RECOMPILATIONS="0")
    assert done.returncode == 0 and done.stdout.count("done") == count, done.stderr[-4000:]


def test_consolidated_checkpoints(tmp_path: Path) -> None:
    """The command consolidates the files of two replicas."""
    code = "import torch; info = {'w': {'names': ['a', 'b'], 'pieces': [0, 0], 'shapes': [[3]], 'rows': False}}\n"
    code += "for rank in range(2):\n"
    code += "    meta = {'shard_info': info, 'world_size': 2, 'rank': rank}\n"
    code += "    model = {'w': torch.arange(2.0) + 2 * rank, 'n': torch.ones(1)}\n"
    code += f"    torch.save({{'model': model, 'shard_metadata': meta}}, {str(tmp_path)!r} + f'/ck-{{rank}}.pth')\n"
    run_script(code)
    command = [*scripts.PYTHON, "-m", "torch_xla.distributed.fsdp.consolidate_sharded_ckpts", "--ckpt_prefix"]
    env = os.environ | scripts.server_variables()
    done = subprocess.run([*command, str(tmp_path / "ck-")], env=env, capture_output=True, text=True)
    assert done.stdout == f"saved {tmp_path}/ck-_consolidated.pth\n", done.stderr
    check = f"import torch; m = torch.load({str(tmp_path / 'ck-_consolidated.pth')!r})['model']; print(m)"
    shown = run_script(check).stdout
    assert shown == "{'a': tensor([0., 1., 2.]), 'b': tensor([0., 1., 2.]), 'n': tensor([1.])}\n"
    (tmp_path / "ck-1.pth").unlink()
    done = subprocess.run([*command, str(tmp_path / "ck-")], env=env, capture_output=True, text=True)
    assert done.returncode == 1 and "ranks [0], expected 0 to 1" in done.stderr
