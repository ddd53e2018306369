"""torch_xla.distributed.run: workers that are forked from a process with torch, jax and torch_xla."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import scripts
from torch_xla.distributed import run

#: A module that a user preloads: imported once for all workers and attempts.
PRELOADED = "import os\nPID = os.getpid()\n"

SCRIPT = """
import atexit, json, os, sys, threading, time
import preloaded
import torch, torch.distributed as dist
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
folder = sys.argv[1]

def write(name, value):
    with open(os.path.join(folder, f"{name}-{attempt}-{rank}"), "x") as file:  # raises the second time
        json.dump(value, file)

def join_late():
    time.sleep(0.3)
    write("thread", "torch_xla" in sys.modules)

dist.init_process_group("xla", init_method="xla://")
total = torch.full((2,), 2.5 + rank, device="xla")
dist.all_reduce(total)
values = total.tolist()
atexit.register(lambda: write("atexit", os.path.exists(os.path.join(folder, f"thread-{attempt}-{rank}"))))
if attempt == 0 and rank == 1:
    raise ValueError("the intended error")
if attempt == 1:
    write("result", {
        "values": values, "name": __name__, "argv": sys.argv, "path": sys.path[0], "preloaded": preloaded.PID,
        "pid": os.getpid(), "threads": torch.get_num_threads(),
    })
    threading.Thread(target=join_late).start()
    dist.destroy_process_group()
"""


def _run(arguments: list[str], cwd: Path, python: Sequence[str] = scripts.PYTHON) -> subprocess.CompletedProcess[str]:
    environment = os.environ | scripts.server_variables() | {"PJRT_DEVICE": "CPU", "OMP_NUM_THREADS": "1"}
    command = [*python, "-m", "torch_xla.distributed.run", "--standalone", "--nproc-per-node=2", *arguments]
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=240)


def test_workers_run_the_script_as_python_does(tmp_path: Path) -> None:
    """The second attempt is forked from the same process; threads are joined before functions of atexit run."""
    (tmp_path / "preloaded.py").write_text(PRELOADED)
    (tmp_path / "scripts").mkdir()
    script = tmp_path / "scripts" / "train.py"
    script.write_text(SCRIPT)
    options = ["--max-restarts=1", "--preload=preloaded", "scripts/train.py", str(tmp_path), "--flag"]
    done = _run(options, tmp_path, python=[sys.executable])
    assert done.returncode == 0, done.stderr[-4000:]
    assert "ValueError: the intended error" in done.stderr
    read = {file.name: json.loads(file.read_text()) for file in tmp_path.glob("*-[01]-[01]")}
    assert {name: read[name] for name in read if name.startswith(("thread-1", "atexit-1"))} == {
        f"{name}-1-{rank}": True for name in ("thread", "atexit") for rank in (0, 1)
    }
    assert read["atexit-0-1"] is False
    results = [read[f"result-1-{rank}"] for rank in (0, 1)]
    for result in results:
        assert result["values"] == [6.0, 6.0] and result["name"] == "__main__" and result["threads"] == 1
        assert result["argv"] == [str(script), str(tmp_path), "--flag"] and result["path"] == str(script.parent)
    servers = {result["preloaded"] for result in results}
    assert len(servers) == 1 and not servers & {result["pid"] for result in results}


def test_a_module_with_an_exit_code(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "train.py").write_text("import sys\nprint(__name__, __package__, sys.argv[1:])\nsys.exit(3)\n")
    done = _run(["--module", "package.train", "one"], tmp_path)
    assert done.returncode == 1
    assert "__main__ package ['one']" in done.stdout and "exitcode  : 3" in done.stderr, done.stderr[-4000:]


UNEVEN = """
import os, signal, sys
import torch, torch.distributed as dist

def main():
    signal.signal(signal.SIGTERM, lambda *_: None)  # as a checkpoint manager that saves on preemption
    dist.init_process_group("xla", init_method="xla://")
    rank = dist.get_rank()
    total = torch.ones(2, device="xla")
    for _ in range(3 - rank):
        dist.all_reduce(total)
        print(rank, total.tolist(), flush=True)

sys.exit(main())
"""


def test_a_rank_that_exits_early_is_named(tmp_path: Path) -> None:
    """A worker that exits with code 0 leaves the job, although torchelastic keeps its process."""
    script = tmp_path / "train.py"
    script.write_text(UNEVEN)
    done = _run([str(script)], tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("[4.0, 4.0]") == 2 and "[8.0, 8.0]" not in done.stdout
    assert "collectives differ between rank 0 and rank 1" in done.stderr, done.stderr[-4000:]
    assert "rank 1: no collective: the process has exited" in done.stderr
    assert "Unable to shutdown process" not in done.stderr, "the handler ends with the script"


@pytest.mark.parametrize("code", ["None", "0"])
def test_a_script_that_exits_with_success(tmp_path: Path, code: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import atexit, sys\natexit.register(print, 'end')\nsys.exit({code})\n")
    done = _run([str(script)], tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("end") == 2


FAILURE = """
import atexit, torch, torch_xla, torch_xla.core.xla_model as xm

def fail():
    raise ValueError("the intended error")

atexit.register(print, "function of atexit")
torch.ones(2, device="xla")
xm.add_step_closure(fail, run_async=True)
torch_xla.sync()
print("end of the script")
"""


def test_a_failure_in_the_background_fails_the_worker(tmp_path: Path) -> None:
    """torch_xla's own functions of atexit run in the worker, after those of the script, and set the exit code."""
    script = tmp_path / "train.py"
    script.write_text(FAILURE)
    done = _run(["--nproc-per-node=1", str(script)], tmp_path)
    assert done.returncode == 1 and "exitcode  : 1" in done.stderr, done.stderr[-4000:]
    assert "the intended error" in done.stderr
    assert done.stdout.split("\n")[:2] == ["end of the script", "function of atexit"]


def test_another_program_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run.main(["--no-python", "program"])
    assert "--no-python: the workers are forks of a Python process; use torchrun" in capsys.readouterr().err
