"""Entry point of ``torch-xla`` and ``python -m torch_xla``: the help, and the choice of a command."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence

from torch_xla._version import __version__
from torch_xla.cli.command_table import COMMANDS, GROUPS

PROG = "torch-xla"

_EPILOG = f"""\
Examples:
  {PROG} report train.py --epochs 1             where do the steps of train.py spend their time?
  {PROG} aot --target v5e:2x2 train.py          does it fit on four TPU v5e chips, and what is expensive?
  {PROG} run --local=2 -- python train.py       two processes on this machine
  {PROG} explain changing-shapes                the page that a warning refers to

Exit codes: 0 success; 1 a problem was found, or the script failed; 2 wrong command line. `aot` and `plan` exit with 3
for a program that does not fit; `run` and `report` exit with the code of the command or script.

`{PROG} COMMAND --help` describes a command. `python -m torch_xla` is the same as `{PROG}`.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line (default: sys.argv) and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(words)
    except BrokenPipeError:  # the reader of a pipe ended early, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return 130


def _dispatch(words: list[str]) -> int:
    if words[:1] == ["help"]:
        words = [*words[1:2], "--help"]
    first = words[0] if words else ""
    if first in COMMANDS:
        return COMMANDS[first].run(words[1:], f"{PROG} {first}")
    if first in ("--help", "-h"):
        print(help_text(), end="")
        return 0
    if first in ("--version", "-V"):
        print(f"torch_xla {__version__}")
        return 0
    if not first:
        print(help_text(), end="", file=sys.stderr)
        return 2
    near = difflib.get_close_matches(first, COMMANDS, 1)
    advice = f"Did you mean `{near[0]}`?" if near else f"`{PROG} --help` lists the commands"
    print(f"{PROG}: {first!r} is not a command. {advice}", file=sys.stderr)
    return 2


def help_text() -> str:
    """Return the text of ``torch-xla --help``."""
    lines = [f"usage: {PROG} COMMAND [options]", "", "PyTorch on XLA devices: run, compile and diagnose."]
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {command.name:<11} {command.summary}" for command in commands]
    lines += ["", "Options:", "  -h, --help     show this help", "  -V, --version  show the version", "", _EPILOG]
    return "\n".join(lines)
