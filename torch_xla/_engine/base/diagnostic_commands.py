"""Detect ``python -m`` diagnostic commands (the doctor and others), for which importing torch_xla must do nothing."""

from __future__ import annotations

import sys

#: Commands that diagnose failing imports, so they must run before any of the engine is imported.
_OF_IMPORTING = ("torch_xla.doctor", "torch_xla.build", "torch_xla._engine.compat")


def is_diagnostic_command() -> bool:
    """Whether Python is importing the package for ``python -m`` of one of these commands.

    During that import Python sets ``sys.argv[0]`` to ``-m``, followed by the command's arguments.
    """
    if not sys.argv or sys.argv[0] != "-m" or len(sys.orig_argv) < len(sys.argv):
        return False
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m") in _OF_IMPORTING
