"""The end of a process that is one of several.

    running -> ending (its programs are done, and the others are told that nothing more will come) -> left

A process that ends, well or with an exit code, waits for the others for seconds only, so that whoever started it sees
the code; rank 0, whom they need, stays until they have left. Others that wait for it in a collective learn from
``agreement`` that it has ended, as they learn of a collective that differs. One that ends by an exception leaves
nothing in order: it must not wait for its own programs, which may be waiting for others.
"""

from __future__ import annotations

import os
import sys

from torch_xla._engine.job import coordination
from torch_xla._engine.parallel import collective_check, watchdog


def leave_job() -> None:
    """Leaves the job in good order. Nothing outside of a job."""
    if coordination.is_initialized():
        watchdog.wait_for_last()
        collective_check.announce_exit()
    coordination.shutdown()


def at_exit() -> None:
    """Parts; a process that ends by an exception ends here instead, with exit code 1."""
    if coordination.exited_with_error():
        coordination.notify_exit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    leave_job()
