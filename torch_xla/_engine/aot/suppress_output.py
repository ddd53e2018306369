"""Keeps a compiler's own messages off the user's terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def suppress_stderr() -> Iterator[None]:
    """In the block, what the process writes to stderr goes nowhere, C++'s too. For short calls that libraries log in.

    An error is raised, not written, by what is called so. Without a stderr it does nothing.
    """
    try:
        sys.stderr.flush()
        kept = os.dup(2)
    except (AttributeError, OSError, ValueError):
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(nowhere)
        os.close(kept)
