"""The first steps of a training, before everything is compiled, for each TORCH_XLA_FIRST_RUN; next to eager CPU.

    python -m benchmarks.first [--only NAME]

Each cell is from a process of its own, with nothing on disk: milliseconds of the first, the second, the third and the
fourth step. From the fourth on nothing is compiled.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

import torch

from benchmarks import step
from benchmarks.report import setting, table

WAYS = ("auto", "eager", "compile")
STEPS = 4


def measure(name: str, device: str) -> list[float]:
    """Milliseconds of each step, in this process."""
    (job,) = (job for job in step.JOBS if job.name == name)
    contestant, found = step.Torch(job, torch.device(device)), []
    for _ in range(STEPS):
        start = time.perf_counter()
        contestant.step()
        contestant.wait()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def _apart(name: str, device: str, way: str) -> str:
    """The same in a process of its own, as a cell."""
    command = [sys.executable, "-m", "benchmarks.first", "--only", name, "--here", device]
    done = subprocess.run(
        command, env=os.environ | {"TORCH_XLA_FIRST_RUN": way}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip().splitlines()[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--here", metavar="DEVICE", help="measure the one job in this process, and print its cell")
    options = parser.parse_args()
    names = [job.name for job in step.JOBS if options.only in job.name]
    if options.here:
        if options.here != "cpu":
            import torch_xla  # noqa: F401
        print(" + ".join(f"{ms:.0f}" for ms in measure(options.only, options.here)))
        return
    rows = [[name, _apart(name, "cpu", "auto"), *(_apart(name, "xla", way) for way in WAYS)] for name in names]
    print(f"{setting()}\n\n{table(['first steps, ms', 'eager CPU', *WAYS], rows)}")


if __name__ == "__main__":
    main()
