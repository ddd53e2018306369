"""The memory of this machine that a training step on the CPU takes, here and in eager torch.

    python -m benchmarks.memory [--only GPT]

Each contestant runs in a separate process: five steps, then the peak of resident memory over five more (VmHWM, which
the kernel sets back for it). "step" is the part of it allocated after the model was made: parameters, gradients,
the optimizer's state, activations, compiled programs. The rest is libraries, jax's and XLA's among them here. The first
process compiles; a second one finds its programs on disk, as by default.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks import jax_models, models, report
from benchmarks.contestants import JOBS, Job, Torch

STEPS = 5
#: A model whose parameters and activations are more than what libraries and compilers take.
LARGE = Job(
    "GPT-8L of 46M, AdamW",
    functools.partial(models.GPT, layers=8, width=640, heads=10, vocabulary=4096, length=256),
    functools.partial(models.text, batch=8, length=256, vocabulary=4096),
    torch.optim.AdamW,
    jax_models.gpt,  # of another size, and not made here: this is about torch
)


def _megabytes(name: str) -> float:
    """A figure of this process's memory, by the kernel's name."""
    found = re.search(rf"^{name}:\s+(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def measure(name: str, device: str) -> dict[str, float]:
    """MB of the process, and of the step, in this process."""
    job = next(job for job in (*JOBS, LARGE) if job.name == name)
    if device != "cpu":
        import torch_xla  # noqa: F401  # and what the first device takes is no step's

        (torch.ones(1, device=device) + 1).cpu()
    before = _megabytes("VmRSS")
    contestant = Torch(job, torch.device(device))
    for _ in range(STEPS):
        contestant.step()
        contestant.wait()
    Path("/proc/self/clear_refs").write_text("5")
    for _ in range(STEPS):
        contestant.step()
        contestant.wait()
    peak = _megabytes("VmHWM")
    return {"process": peak, "step": peak - before}


def _in_a_process(name: str, device: str, folder: str = "") -> dict[str, float]:
    """``folder``: folder of the persistent compilation cache, if any."""
    command = [sys.executable, "-m", "benchmarks.memory", "--of", name, "--device", device]
    environment = os.environ | {"XLA_PERSISTENT_CACHE_PATH": folder}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _row(name: str) -> list[str]:
    with tempfile.TemporaryDirectory() as folder:
        here, second = (_in_a_process(name, "xla:0", folder) for _ in range(2))
    eager = _in_a_process(name, "cpu")
    cells = [name]
    for what in ("step", "process"):
        cells += [f"{here[what]:.0f}", f"{eager[what]:.0f}", f"{here[what] / eager[what]:.2f}"]
    return [*cells, f"{second['process']:.0f}", f"{second['process'] / eager['process']:.2f}"]


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--of", help="measure this job in this process, and print JSON")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    if options.of:
        print(json.dumps(measure(options.of, options.device)))
        return
    rows = [_row(job.name) for job in (*JOBS, LARGE) if options.only in job.name]
    print(report.setting() + "\n")
    parts = ["step here", "eager CPU", "ratio", "process here", "eager CPU", "ratio", "second process", "ratio"]
    head = ["peak memory, MB", *parts]
    print(report.table(head, rows))


if __name__ == "__main__":
    main()
