"""Notices that replicas wait for each other in vain, when each runs a program that it has known for long.

A thread looks every few seconds whether the latest program with collectives gets on. If it has not for a while, it
publishes in the job's key-value store what that program exchanges, and compares with what other stalled processes have
published. Ranks that are merely late have published nothing; those that have ended have said so. The thread that waits
is deep in XLA and cannot be raised in, so a difference ends the process: ``report`` says it, by default on stderr.

    idle -> launched (by a program with collectives) -> idle (when its results are there)
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import jax

from torch_xla._engine.job import coordination
from torch_xla._engine.parallel import collective_check
from torch_xla._engine.parallel.replica_program import ReplicaGroup

#: Seconds between looks, and for which a program may take before it is suspected.
_PERIOD, _PATIENCE = 2.0, 4.0


@dataclass
class _PendingLaunch:
    exchanges: Sequence[str]
    place: str
    since: float = field(default_factory=time.monotonic)
    #: This process's part of a result that is kept until it is there; None while the call has not returned, and then.
    result: jax.Array | None = None
    done: bool = False


_latest: _PendingLaunch | None = None
_thread: threading.Thread | None = None


def _report_and_exit(message: str) -> None:
    sys.stderr.write(f"torch_xla: {message}\n")
    sys.stderr.flush()
    coordination.notify_exit()
    os._exit(1)


#: What is done with the message of a stall that will not end. May not return.
report: Callable[[str], None] = _report_and_exit


def on_launch(exchanges: Sequence[str], team: ReplicaGroup) -> None:
    """Called before a program of the team is started; ``exchanges`` as of agreement.exchanges."""
    global _latest, _thread
    _latest = _PendingLaunch(exchanges, collective_check.count_launch(team))
    if _thread is None:
        _thread = threading.Thread(target=_watch, name="torch_xla watchdog", daemon=True)
        _thread.start()


def on_launched(results: Sequence[jax.Array], smallest: int) -> None:
    """Called when the program is under way; it is done when its results are there. The smallest is kept until then."""
    if _latest is not None:
        _latest.result = results[smallest].addressable_data(0)


def _is_progressing(launch: _PendingLaunch) -> bool:
    result: Any = launch.result
    if result is not None and (result.is_deleted() or result.is_ready()):
        launch.done, launch.result = True, None
    return launch.done


def wait_for_last() -> None:
    """Waits for the latest program: others need this process's part of it. Whoever reads a failed one is told."""
    result: Any = _latest.result if _latest is not None else None
    if result is not None and not result.is_deleted():
        with suppress(jax.errors.JaxRuntimeError):
            result.block_until_ready()


def _watch() -> None:
    while True:
        time.sleep(_PERIOD)
        launch = _latest
        if launch is None or _is_progressing(launch) or time.monotonic() - launch.since < _PATIENCE:
            continue
        try:
            collective_check.compare_signatures(launch.exchanges, f"stalled/{launch.place}")
        except collective_check.CollectiveMismatchError as error:
            if launch is _latest:
                report(str(error))
        except RuntimeError:
            return  # the job is over, or this process has left it
