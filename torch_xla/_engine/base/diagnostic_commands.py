"""Detect the commands for which importing torch_xla must do nothing: the command line and ``python -m`` diagnostics."""

from __future__ import annotations

import os
import sys

#: Commands that diagnose failing imports, or need no engine, so they must run before any of the engine is imported.
_MODULES = (
    "torch_xla",
    "torch_xla.__main__",
    "torch_xla.build",
    "torch_xla.doctor",
    "torch_xla.settings",
    "torch_xla._engine.compat",
)
_SCRIPT = "torch-xla"  # the console script


def is_diagnostic_command() -> bool:
    """Whether Python is importing the package for one of these commands.

    While Python imports a package for ``python -m``, ``sys.argv[0]`` is ``-m``, followed by the command's arguments.
    """
    if not sys.argv:
        return False
    if os.path.basename(sys.argv[0]) == _SCRIPT:
        return True
    if sys.argv[0] != "-m" or len(sys.orig_argv) < len(sys.argv):
        return False
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m") in _MODULES
