"""Suppresses the messages that compilers print to stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def suppress_stderr() -> Iterator[None]:
    """Discard everything the process writes to stderr within the block, including C++ code.

    Use it for short calls into libraries that log, and that raise their errors. Without a stderr it has no effect.
    """
    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (AttributeError, OSError, ValueError):
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(saved, 2)
        os.close(nowhere)
        os.close(saved)
