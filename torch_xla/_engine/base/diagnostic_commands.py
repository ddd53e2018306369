"""Which command this process is, where that decides what importing torch_xla does."""

from __future__ import annotations

import sys

#: They say what stands in the way of importing, so nothing of it may happen before they run.
_OF_IMPORTING = ("torch_xla.doctor", "torch_xla.build", "torch_xla._engine.compat")


def is_diagnostic_command() -> bool:
    """Whether this is the moment before ``python -m`` runs one of those: it imports the package first.

    Python has put ``-m`` into ``sys.argv[0]`` for that moment, and the command's own arguments behind it.
    """
    if not sys.argv or sys.argv[0] != "-m" or len(sys.orig_argv) < len(sys.argv):
        return False
    return sys.orig_argv[-len(sys.argv)].removeprefix("-m") in _OF_IMPORTING
