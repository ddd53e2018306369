"""The command line of ``torch-xla report``. Imports neither torch nor jax."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

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
    parser = argparse.ArgumentParser(
        prog=prog,
        description=_HELP,
        epilog=_EPILOG.format(prog=prog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    file = lambda text: Path(text).absolute()  # the script may change the working directory
    parser.add_argument("--output", "-o", type=file, metavar="FILE", help="write an HTML page to this file")
    parser.add_argument("--last", type=int, metavar="N", help="only the last N steps (default: all, at most 1000)")
    parser.add_argument(
        "--module", "-m", action="store_true", help="the script is the name of a module, as for python -m"
    )
    parser.add_argument("script", help="the program to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
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
