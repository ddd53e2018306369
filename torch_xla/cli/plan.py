"""``torch-xla plan``: compile a script for several targets, without values, and compare memory and time."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch_xla._engine.aot import arguments
from torch_xla._engine.base import command_line
from torch_xla.cli.formatting import format_size, format_table

_HELP = """\
Compare targets for a script: compile it for each of them with `torch-xla aot --abstract`, which computes no values and
allocates no memory on this machine, and print the memory and the estimated time per step in one table.
"""

_EPILOG = """\
targets: {targets}

examples:
  {prog} --targets v5e:2x2,v6e:2x2,h100 --steps 2 train.py
  {prog} --targets v5e:1x1,v5e:2x2,v5e:4x4 train.py --batch 64     the smallest slice that fits

exit codes:
  0  the script fits on every target
  1  the script failed, or a program cannot be compiled for a target
  2  the command line is wrong, or a target's compiler is not installed
  3  a program does not fit into the memory of a target
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP, _EPILOG.format(prog=prog, targets=arguments.supported_targets()))
    parser.add_argument("--targets", required=True, metavar="A,B,...", help="targets to compile for")
    parser.add_argument("--steps", metavar="N", help="end the script at its N-th step (default: run to its end)")
    command_line.add_script(parser)
    return parser


def main(argv: Sequence[str], prog: str) -> int:
    """Compile for each target, print the table, and return the exit code."""
    options = make_parser(prog).parse_args(argv)
    targets = [name for name in options.targets.split(",") if name]
    commands = {name: _aot_arguments(options, name) for name in targets}
    for command in commands.values():
        arguments.parse(prog, command)
    codes: list[int] = []
    rows: list[tuple[str, ...]] = [_HEADING]
    with tempfile.TemporaryDirectory(prefix="torch_xla-plan-") as folder:
        for name, command in commands.items():
            code, data = _compile(command, Path(folder, f"{len(codes)}.json"))
            codes.append(code)
            rows.append(describe(name, code, data))
    print(format_table(rows, right=(1, 3, 4, 5)))
    print("\nTime: the estimate of `torch-xla aot`, from published specifications; it was not measured.")
    return next((code for code in (1, 2, 3) if code in codes), 0 if not any(codes) else 1)


def _aot_arguments(options: argparse.Namespace, target: str) -> list[str]:
    steps = [] if options.steps is None else ["--steps", options.steps]
    module = ["--module"] if options.module else []
    return ["--abstract", "--target", target, *steps, *module, options.script, *options.args]


#: Interval in seconds at which the end of a compilation is checked.
_TICK = 0.05


def _compile(command: Sequence[str], report: Path) -> tuple[int, dict[str, Any] | None]:
    """Run ``python -m torch_xla.aot``; return its exit code and report, None if it wrote none.

    SIGTERM is forwarded to it; raises SystemExit after it has ended.
    """
    words = [sys.executable, "-m", "torch_xla.aot", "--json", str(report), *command]
    received: list[int] = []  # the handler is set before the process exists
    handler = signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    try:
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as child:
            while not received and child.poll() is None:
                time.sleep(_TICK)
            if received:
                child.terminate()
            code = child.wait()
    finally:
        signal.signal(signal.SIGTERM, handler)
    if received:
        raise SystemExit(128 + signal.SIGTERM)
    return code, json.loads(report.read_text()) if report.exists() else None


_HEADING = ("target", "chips", "result", "needs per chip", "has", "time per step")
_RESULTS = {0: "fits", 1: "failed", 2: "not compiled", 3: "does not fit"}


def describe(name: str, code: int, data: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the row of a target."""
    result = _RESULTS.get(code, "failed")
    if data is None:
        return name, "", result, "", "", ""
    programs = data["programs"]
    needed = max((row["memory"]["required_bytes"] for row in programs), default=0)
    seconds = sum(row["work"]["seconds"] * row["runs"] for row in programs if row["work"])
    time = f"{1000 * seconds / data['steps']:.2f} ms" if data["steps"] and seconds else ""
    target = data["target"]
    return name, str(target["chips"]), result, format_size(needed), format_size(target["hbm_bytes"]), time
