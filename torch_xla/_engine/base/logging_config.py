"""Logging configuration: loggers ``torch_xla.<name>`` of Python's ``logging``, enabled by TORCH_XLA_LOGS.

TORCH_XLA_LOGS=compile,transfer     INFO of these loggers, on stderr
TORCH_XLA_LOGS=+compile             DEBUG
TORCH_XLA_LOGS=all,-fallback        INFO of all loggers, only errors of fallback
"""

from __future__ import annotations

import logging
import sys

from torch_xla._engine.base.settings import settings

#: The engine's loggers: name below ``torch_xla``, and contents.
NAMES = {
    "compile": "each compilation: cause, ops, time",
    "execute": "each execution: ops, inputs, results",
    "transfer": "each copy between CPU and device",
    "fallback": "each operator that falls back to the CPU",
    "recompilation": "the reason for each recompilation",
    "memory": "the peak memory of each step",
    "checkpoint": "each restore of a CheckpointManager with snapshots: the step and its tier",
}

_LEVELS = {"": logging.INFO, "+": logging.DEBUG, "-": logging.ERROR}


def configure_logging() -> None:
    """Set log levels from TORCH_XLA_LOGS; if it is unset, leave the user's logging configuration unchanged.

    Raises ValueError for an unknown logger name.
    """
    if not settings.TORCH_XLA_LOGS:
        return
    root = logging.getLogger("torch_xla")
    for name, sign in settings.TORCH_XLA_LOGS:
        if name != "all" and name not in NAMES:
            raise ValueError(f"TORCH_XLA_LOGS: unknown log {name!r}; use all, {', '.join(NAMES)}")
        (root if name == "all" else root.getChild(name)).setLevel(_LEVELS[sign])
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s: %(message)s"))
    root.addHandler(handler)
    root.propagate = False
