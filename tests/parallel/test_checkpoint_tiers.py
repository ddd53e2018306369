"""Checkpoints in several tiers: snapshots on each host, copies on peers, and the remote path."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from tests.programs import tier_programs
from tests.support import scripts
from tests.support.helpers import ROOT


def run_job(count: int, scenarios: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = [*scripts.PYTHON, "-m", "torch.distributed.run", f"--nproc-per-node={count}", "--standalone"]
    env = (
        os.environ
        | scripts.server_variables()
        | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1", "PYTHONPATH": str(ROOT)}
    )
    return subprocess.run(
        [*command, "--no-python", *scripts.PYTHON, tier_programs.__file__, scenarios, str(folder)],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip


def test_lost_folders(tmp_path: Path) -> None:
    done = run_job(4, "lose_folders,fill_disk,loader_states", tmp_path)
    assert done.returncode == 0 and done.stdout.count("done") == 4, done.stderr[-4000:]


def test_killed_process(tmp_path: Path) -> None:
    """A process is killed while it writes a snapshot; the earlier one is restored by four processes, and by three."""
    done = run_job(4, "save_and_kill", tmp_path)
    assert done.returncode != 0 and "SIGKILL" in done.stderr and "done" not in done.stdout, done.stderr[-4000:]
    assert list(tmp_path.glob("host2/*/*/.6.writing"))
    done = run_job(4, "restore_after_kill", tmp_path)
    assert done.returncode == 0 and done.stdout.count("done") == 4, done.stderr[-4000:]
    shutil.rmtree(tmp_path / "host3")
    done = run_job(3, "restore_after_kill", tmp_path)
    assert done.returncode == 0 and done.stdout.count("done") == 3, done.stderr[-4000:]
