"""The command line of ``torch-xla report``. Imports neither torch nor jax."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from torch_xla._engine.base import command_line

_HELP = """\
Run a script and report how its steps spend their time: recompilations, interpreted graphs, CPU fallbacks, values read,
by line. The script needs no change. The report follows its output.
"""

_EPILOG = """\
examples:
  {prog} train.py --epochs 1
  {prog} -o report.html train.py --epochs 1      a page with charts
  {prog} --last 100 -m my_package.train          a module; its last 100 steps

exit codes:
  the script's; 1 if it raised an exception (the report covers the steps before)
  2  the command line is wrong
"""


def make_parser(prog: str) -> argparse.ArgumentParser:
    """Return the parser of the command."""
    parser = command_line.make_parser(prog, _HELP, _EPILOG.format(prog=prog))
    file = lambda text: Path(text).absolute()  # the script may change the working directory
    parser.add_argument("--output", "-o", type=file, metavar="FILE", help="write an HTML page to this file")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N steps (default: all, at most 1000)")
    command_line.add_script(parser)
    return parser


def parse(prog: str, argv: Sequence[str]) -> argparse.Namespace:
    """Return the options; exits with 2 for wrong arguments or a script that does not exist."""
    parser = make_parser(prog)
    options = parser.parse_args(argv)
    if options.last is not None and options.last < 1:
        parser.error(f"argument --last: {options.last}: expected at least 1")
    if not options.module and not Path(options.script).exists():
        parser.error(f"the script {options.script} does not exist")
    return options
