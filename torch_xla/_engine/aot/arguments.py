"""The command line of ``torch-xla aot`` and ``python -m torch_xla.aot``. Imports neither torch nor jax."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch_xla._engine.aot import hardware_specs
from torch_xla._engine.base import command_line

#: Option of the subprocess that compiles: the folder in which it notes its progress for the parent process.
WITHIN = "--within"

_DESCRIPTION = """\
Compile the programs of a script for an accelerator that this machine does not have.

The script runs unmodified on CPU devices of this machine, which compute its values. Each distinct program is also
compiled for the target, with the target's compiler. A report lists memory use, estimated time and collectives.
"""

_EPILOG = """\
examples:
  {prog} --target v5e:2x2 train.py --epochs 1
  {prog} --target h100 --abstract --steps 2 --html report.html train.py

exit codes:
  0  every program compiles and fits
  1  the script failed, or a program cannot be compiled for the target
  2  the command line is wrong, or the target's compiler is not installed
  3  a program does not fit into the memory of the chips
"""


def supported_targets() -> str:
    """Describe the names of targets, for messages and help."""
    tpus, gpus = ", ".join(hardware_specs.TPUS), ", ".join(hardware_specs.GPUS)
    return f"a TPU with a topology, e.g. v5e:2x2 ({tpus}), or a GPU, e.g. h100 or h100:8 ({gpus})"


def parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; exits with 2 for wrong arguments or a script that does not exist."""
    parser = make_parser(prog)
    options = parser.parse_args(argv)
    if not options.module and not Path(options.script).exists():
        parser.error(f"the script {options.script} does not exist")
    return options


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _DESCRIPTION, _EPILOG.format(prog=prog))
    parser.add_argument("--target", required=True, help=f"target to compile for: {supported_targets()}")
    parser.add_argument(
        "--steps", type=positive, metavar="N", help="end the script at its N-th step (default: run to its end)"
    )
    file = lambda text: Path(text).absolute()  # the script may change the working directory
    parser.add_argument("--json", type=file, metavar="FILE", help="write the report as JSON to this file")
    parser.add_argument("--html", type=file, metavar="FILE", help="write the report as an HTML page to this file")
    parser.add_argument(
        "--fill-cache",
        type=file,
        metavar="DIR",
        help="write the executables to this folder, for XLA_PERSISTENT_CACHE_PATH on the target",
    )
    parser.add_argument("--abstract", action="store_true", help="compute and allocate nothing; values read are zeros")
    parser.add_argument(WITHIN, type=Path, help=argparse.SUPPRESS)
    command_line.add_script(parser)
    return parser


def positive(text: str) -> int:
    """Parse a number that is at least 1. Raises argparse's error."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: expected at least 1")
    return int(text)
