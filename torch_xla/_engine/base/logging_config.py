"""Logging: everything goes through Python's ``logging``, under ``torch_xla.<name>``; TORCH_XLA_LOGS switches it on.

TORCH_XLA_LOGS=compile,transfer     INFO of these, on stderr
TORCH_XLA_LOGS=+compile             DEBUG
TORCH_XLA_LOGS=all,-fallback        INFO of all, of fallback only errors
"""

from __future__ import annotations

import logging
import sys

from torch_xla._engine.base.settings import settings

#: What the engine logs: name below ``torch_xla`` and what it says.
NAMES = {
    "compile": "each compilation: cause, ops, time",
    "execute": "each execution: ops, inputs, results",
    "transfer": "each copy between CPU and device",
    "fallback": "each op that runs on the CPU",
    "recompilation": "why a graph was compiled again",
    "memory": "the peak of each step",
}

_LEVELS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}


def configure_logging() -> None:
    """Sets levels as TORCH_XLA_LOGS says; without it the user's logging configuration is all there is.

    Raises ValueError for a name that does not exist.
    """
    if not settings.TORCH_XLA_LOGS:
        return
    root = logging.getLogger("torch_xla")
    for name, sign in settings.TORCH_XLA_LOGS:
        if name != "all" and name not in NAMES:
            raise ValueError(f"TORCH_XLA_LOGS: there is no log {name!r}; there are all, {', '.join(NAMES)}")
        (root if name == "all" else root.getChild(name)).setLevel(_LEVELS[sign])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
    root.addHandler(handler)
    root.propagate = False
