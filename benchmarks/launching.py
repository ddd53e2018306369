"""What a step costs the host when its program is known: one op, and the update of 160 parameters.

    python -m benchmarks.launching                       this checkout
    python -m benchmarks.launching --against FOLDER      and another one (a worktree of an older commit), in turns

CPU time of the thread that runs the script, so that a busy machine changes little; the least of several rounds. The
device's own work is next to nothing, but on the CPU it is in it: small programs run where they are called.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROUNDS, STEPS = 5, 300
HERE = Path(__file__).resolve().parent.parent


def one_op() -> Callable[[], None]:
    import torch

    x = torch.ones(4, device="xla")

    def step() -> None:
        nonlocal x
        x = x + 1.5

    return step


def parameters() -> Callable[[], None]:
    import torch

    values = [torch.ones(4, device="xla") for _ in range(160)]
    gradients = [torch.ones(4, device="xla") for _ in range(160)]

    def step() -> None:
        for value, gradient in zip(values, gradients, strict=True):
            value.add_(gradient, alpha=-0.1)

    return step


CASES = {"one op": one_op, "160 parameters": parameters}


def measure() -> dict[str, float]:
    """µs that ``torch_xla.sync()`` takes for each case."""
    import torch_xla

    found = {}
    for name, make in CASES.items():
        record, best = make(), float("inf")
        for _ in range(20):
            record()
            torch_xla.sync()
        for _ in range(ROUNDS):
            spent = 0.0
            for _ in range(STEPS):
                record()
                start = time.thread_time()
                torch_xla.sync()
                spent += time.thread_time() - start
            best = min(best, spent / STEPS)
        found[name] = best * 1e6
    return found


def measure_checkout(folder: Path) -> dict[str, float]:
    """What ``measure`` gives in a separate process, with the torch_xla of a checkout."""
    command = [sys.executable, __file__, "--json"]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--json", action="store_true", help="this process's figures, for the command itself")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(measure()))
        return
    folders = [HERE] if options.against is None else [HERE, options.against.resolve()]
    best: list[dict[str, float]] = [{} for _ in folders]
    for _ in range(3):
        for found, folder in zip(best, folders, strict=True):
            for name, value in measure_checkout(folder).items():
                found[name] = min(value, found.get(name, value))
    print("| a known step, host µs | here |" + (" there | ratio |" if options.against else ""))
    print("| --- | --: |" + (" --: | --: |" if options.against else ""))
    for name, here in best[0].items():
        there = f" {best[1][name]:.1f} | {here / best[1][name]:.2f} |" if options.against else ""
        print(f"| {name} | {here:.1f} |{there}")


if __name__ == "__main__":
    main()
