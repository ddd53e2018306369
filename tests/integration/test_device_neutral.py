"""Scripts that choose their device with torch.accelerator train on xla as on the CPU, unedited."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support import scripts
from tests.support.helpers import run_script

PROGRAMS = Path(__file__).parents[1] / "programs" / "device_neutral"
#: Relative difference of losses after a few steps in float32.
TOLERANCE = 2e-3

#: What a program prints of a value. Two ranks interleave Gloo's messages, so that a line of these begins with a number.
VALUE = re.compile(r"(\d+ \w+ )?\d+\.\d+|correct \d+")

#: Runs each program once for each number of processes, in forks of a process with torch alone: importing it takes
#: longer than most programs. Prints what rank 0 prints, as JSON.
ON_THE_CPU = """
import json, os, runpy, socket, sys, tempfile
import torch, torch.distributed

def start(program, rank, processes, port, output):
    pid = os.fork()
    if pid:
        return pid
    job = {{"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "MASTER_ADDR": "localhost", "MASTER_PORT": port}}
    os.environ.update({{name: str(value) for name, value in job.items()}} if processes else {{}})
    sys.argv, sys.stdout = [program], output
    runpy.run_path(program)
    output.flush()
    os._exit(0)

printed = []
for program, processes in {runs!r}:
    with socket.socket() as free, tempfile.TemporaryFile("w+") as output, open(os.devnull, "w") as nowhere:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
        free.close()
        ranks = range(processes or 1)
        children = [start(program, rank, processes, port, nowhere if rank else output) for rank in ranks]
        assert not any([os.waitpid(child, 0)[1] for child in children]), program
        output.seek(0)
        printed.append(output.read())
assert "jax" not in sys.modules
print(json.dumps(printed))
"""


def _losses(text: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if VALUE.fullmatch(line)]


def _printed_on_the_cpu(runs: list[tuple[str, int]]) -> list[str]:
    """Return what each (program, number of processes) prints without torch_xla; 0 processes: without a job."""
    code = ON_THE_CPU.format(runs=[(str(PROGRAMS / f"{name}.py"), processes) for name, processes in runs])
    done = run_script(
        code, check=False, fresh="torch alone, which has no accelerator", TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert done.returncode == 0, done.stderr[-3000:]  # Gloo prints to stdout and stderr
    found: list[str] = json.loads(done.stdout.splitlines()[-1])
    return found


def _check(name: str, expected: str, found: str) -> None:
    assert "device cpu" in expected and "device xla" in found, name
    assert len(_losses(expected)) >= 4, name
    assert _losses(found) == pytest.approx(_losses(expected), rel=TOLERANCE), name


def test_losses_equal_the_cpu() -> None:
    names = ["mnist", "vae", "language_model", "gpt"]
    for name, expected in zip(names, _printed_on_the_cpu([(name, 0) for name in names]), strict=True):
        # The script calls no torch_xla.sync(), and its printed losses change graphs: both are reported.
        program = str(PROGRAMS / f"{name}.py")
        code = f"import runpy, warnings, torch_xla\nwarnings.simplefilter('ignore')\nrunpy.run_path({program!r})\n"
        found = run_script(code, check=False)
        assert found.returncode == 0, found.stderr[-3000:]
        _check(name, expected, found.stdout)


def _run_by_torchrun(script: Path, processes: int) -> str:
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "--no-python"]
    done = subprocess.run(
        [*scripts.PYTHON, *torchrun, *scripts.PYTHON, str(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | scripts.server_variables(),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("name", ["data_parallel", "fully_sharded"])
def test_losses_under_torchrun(name: str, tmp_path: Path) -> None:
    with_xla = tmp_path / "with_xla.py"
    with_xla.write_text(f"import runpy\nimport torch_xla\nrunpy.run_path({str(PROGRAMS / f'{name}.py')!r})\n")
    for processes, expected in zip((1, 2), _printed_on_the_cpu([(name, 1), (name, 2)]), strict=True):
        _check(f"{name}, {processes} processes", expected, _run_by_torchrun(with_xla, processes))
