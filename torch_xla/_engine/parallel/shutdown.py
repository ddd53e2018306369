"""Leave a multi-process job when this process exits.

    running --> last program done --> exit announced to the other ranks --> left the job

A process that returns or exits with a code waits only seconds for the other ranks, so that its launcher sees the exit
code soon; rank 0 hosts the coordination service and stays until the others have left. Ranks that wait for an exited
process in a collective are notified through ``collective_check``, like ranks whose collectives differ. A process that
ends by an exception skips all of this: it must not wait for its own programs, which may be waiting for other ranks.
"""

from __future__ import annotations

import os
import sys

from torch_xla._engine.job import coordination
from torch_xla._engine.parallel import collective_check, watchdog


def leave_job() -> None:
    """Leave the job after the last program; do nothing outside a job."""
    if coordination.is_initialized():
        watchdog.wait_for_last()
        collective_check.announce_exit()
    coordination.shutdown()


def at_exit() -> None:
    """Leave the job; after an uncaught exception, exit immediately with code 1."""
    if coordination.exited_with_error():
        coordination.notify_exit()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    leave_job()
