"""The first steps of a training, before everything is compiled, for each TORCH_XLA_COMPILE_POLICY; next to eager CPU.

    python -m benchmarks.first [--only NAME] [--against TREE]

Each cell is from a separate process, with nothing on disk: milliseconds of the first, the second, the third and the
fourth step. From the fourth on nothing is compiled. A second table has a second process, which finds on disk what the
first one compiled: the time to its first result with TORCH_XLA_COMPILE_POLICY=compile, and of all four steps by
default.
With TREE, the working tree of another commit (`git worktree add TREE COMMIT`), only a table of the first two steps with
it and with this one, in turns.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import torch

from benchmarks.contestants import JOBS, Torch
from benchmarks.report import setting, table

WAYS = ("auto", "compile")
STEPS = 4


def measure(name: str, device: str) -> list[float]:
    """Milliseconds of each step, in this process."""
    (job,) = (job for job in JOBS if job.name == name)
    contestant, found = Torch(job, torch.device(device)), []
    for _ in range(STEPS):
        start = time.perf_counter()
        contestant.step()
        contestant.wait()
        found.append((time.perf_counter() - start) * 1e3)
    return found


def _measure_in_process(name: str, device: str, way: str, folder: str = "", path: str | None = None) -> list[int]:
    """The same in a separate process, which keeps its programs in a folder, or nowhere. ``path``: a folder with other
    ``benchmarks`` and ``torch_xla``."""
    command = [sys.executable, "-m", "benchmarks.first", "--only", name, "--here", device]
    environment = os.environ | {"TORCH_XLA_COMPILE_POLICY": way, "XLA_PERSISTENT_CACHE_PATH": folder}
    if path:
        environment["PYTHONPATH"] = path
    done = subprocess.run(command, env=environment, cwd=path, capture_output=True, text=True, check=True)
    return [int(ms) for ms in done.stdout.strip().splitlines()[-1].split(" + ")]


def _cell(found: list[int]) -> str:
    return " + ".join(map(str, found))


def _second_process_row(name: str) -> list[str]:
    """A row of the second table."""
    row = [name]
    for way, part in (("compile", slice(1)), ("auto", slice(STEPS))):
        with tempfile.TemporaryDirectory() as folder:
            first, second = (sum(_measure_in_process(name, "xla", way, folder)[part]) for _ in range(2))
        row += [str(first), str(second), f"{second / first:.2f}"]
    return row


def _against(tree: str, names: list[str], rounds: int = 3) -> str:
    """The table of the first two steps with the torch_xla of another tree and with this one, which take turns.

    The faster of each one's rounds counts: the machine is shared."""
    rows = []
    with tempfile.TemporaryDirectory() as mixed:
        here = pathlib.Path(__file__).resolve().parents[1]
        for package, root in (("benchmarks", here), ("torch_xla", pathlib.Path(tree).resolve())):
            (pathlib.Path(mixed) / package).symlink_to(root / package)
        for name in names:
            contestants = ((mixed, "compile"), (None, "compile"), (None, "auto"))
            found = [
                [sum(_measure_in_process(name, "xla", way, path=path)[:2]) for path, way in contestants]
                for _ in range(rounds)
            ]
            there, compiled, default = map(min, zip(*found, strict=True))
            rows.append([name, *map(str, (there, compiled)), f"{compiled / there:.2f}", str(default)])
    return table(["first two steps, ms", "there", "here, compiled", "ratio", "here, by default"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only the jobs whose name contains this")
    parser.add_argument("--here", metavar="DEVICE", help="measure the one job in this process, and print its cell")
    parser.add_argument("--against", metavar="TREE", help="another working tree of this repository")
    options = parser.parse_args()
    names = [job.name for job in JOBS if options.only in job.name]
    if options.here:
        if options.here != "cpu":
            import torch_xla  # noqa: F401
        print(" + ".join(f"{ms:.0f}" for ms in measure(options.only, options.here)))
        return
    if options.against:
        print(f"{setting()}\n\n{_against(options.against, names)}")
        return
    rows = [
        [
            name,
            _cell(_measure_in_process(name, "cpu", "auto")),
            *(_cell(_measure_in_process(name, "xla", way)) for way in WAYS),
        ]
        for name in names
    ]
    print(f"{setting()}\n\n{table(['first steps, ms', 'eager CPU', *WAYS], rows)}")
    head = [
        "ms",
        "first result, compiled",
        "second process",
        "ratio",
        f"{STEPS} steps by default",
        "second process",
        "ratio",
    ]
    print(f"\n{table(head, [_second_process_row(name) for name in names])}")


if __name__ == "__main__":
    main()
