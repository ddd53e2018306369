"""Show a progress line on the terminal during long compilations: number of ops and elapsed time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch_xla._engine.base.status_line import StatusLine
from torch_xla._engine.job import replicas

#: Seconds before the line appears, and between its updates.
PATIENCE, INTERVAL = 5.0, 1.0


@contextmanager
def show_compile_progress(ops: int) -> Iterator[None]:
    """Show the line if the block takes longer than PATIENCE seconds.

    Without a terminal on stderr, and on ranks other than 0, show nothing and start no thread.
    """
    if sys.stderr is None or not sys.stderr.isatty() or replicas.process_index() != 0:
        yield
        return
    done = threading.Event()
    line = StatusLine(f"compiling a graph of {ops} ops")
    thread = threading.Thread(target=_show, args=(line, done), name="torch_xla_progress", daemon=True)
    thread.start()
    with line:
        try:
            yield
        finally:  # stop the thread before the line ends, so that it cannot write afterwards
            done.set()
            thread.join()


def _show(line: StatusLine, done: threading.Event) -> None:
    patience = PATIENCE
    while not done.wait(patience):
        line.show()
        patience = INTERVAL
