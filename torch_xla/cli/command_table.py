"""The commands of ``torch-xla``: one line each, the module of its parser, and how it runs."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command.

    ``module`` has ``make_parser(prog)``; it is imported when the command is used. It also has ``main(argv, prog)``,
    unless the command runs in a new process that starts the engine: ``python -m replacement argv...``.
    """

    name: str
    summary: str
    module: str
    replacement: str = ""

    def make_parser(self, prog: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = importlib.import_module(self.module).make_parser(prog)
        return parser

    def run(self, argv: Sequence[str], prog: str) -> int:
        """Run the command and return its exit code; exits with 2 for a wrong command line."""
        module = importlib.import_module(self.module)
        if not self.replacement:
            code: int = module.main(argv, prog)
            return code
        parse = getattr(module, "parse", None)  # checks more than the parser does
        if parse is not None:
            parse(prog, argv)
        else:
            self.make_parser(prog).parse_args(argv)
        return replace_process(self.replacement, argv)


def replace_process(module: str, argv: Sequence[str]) -> int:
    """Run ``python -m module argv...`` in place of this process, which has not started the engine. Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    # Private, but the only way to pass on -W, -X and the like.
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execv(sys.executable, [sys.executable, *flags, "-m", module, *argv])


#: The commands by group, in the order of the help.
GROUPS: dict[str, tuple[Command, ...]] = {
    "Run a script": (
        Command(
            "run",
            "run a command on several devices or hosts as one job",
            "torch_xla.distributed.launcher.options",
            "torch_xla.distributed.xla_dist",
        ),
        Command(
            "report",
            "run a script and report where its steps spend their time",
            "torch_xla.cli.report_arguments",
            "torch_xla.cli.report_script",
        ),
    ),
    "Compile for hardware that you don't have": (
        Command(
            "aot",
            "compile a script for a TPU or GPU: memory, cost, collectives by line",
            "torch_xla._engine.aot.arguments",
            "torch_xla.aot",
        ),
        Command("plan", "compare targets: which of them a script fits on, and how fast", "torch_xla.cli.plan.command"),
    ),
    "Find out what is wrong": (
        Command("doctor", "check the installation and run a test computation", "torch_xla.doctor.command"),
        Command("explain", "explain an error or a warning", "torch_xla.cli.explain"),
        Command("settings", "list the environment variables with their values", "torch_xla.settings"),
    ),
    "Manage files": (
        Command("build", "compile the native libraries before the first import", "torch_xla.build"),
        Command("cache", "list, prune, export and import compiled programs", "torch_xla.cli.cache"),
        Command("completion", "print the completion script of a shell", "torch_xla.cli.completion"),
    ),
}

COMMANDS: dict[str, Command] = {command.name: command for group in GROUPS.values() for command in group}
