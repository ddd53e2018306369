"""Parts that the parsers of the command line share. Imports neither torch nor jax."""

from __future__ import annotations

import argparse


def make_parser(prog: str, description: str, epilog: str = "") -> argparse.ArgumentParser:
    """Return a parser that shows both texts as they are, and accepts no abbreviated options."""
    return argparse.ArgumentParser(
        prog=prog,
        description=description,
        epilog=epilog or None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of a command that runs a script: ``[--module] SCRIPT [ARGS ...]``. Call it last."""
    parser.add_argument(
        "--module", "-m", action="store_true", help="the script is the name of a module, as for python -m"
    )
    parser.add_argument("script", help="the program to run")
    parser.add_argument("args", nargs=argparse.REMAINDER, help="its arguments")
