"""Detect deadlocks between replicas whose compiled programs contain different collectives.

A thread checks every few seconds whether the latest program with collectives has finished. If the program is late, the
thread publishes the program's collectives in the job's key-value store and compares them with those of other stalled
processes. Ranks that are merely late have published nothing; ranks that have exited have published that. The waiting
thread is inside XLA, where Python cannot raise, so a mismatch ends the process: ``report`` writes it, by default to
stderr.

    idle --on_launch--> launched --result ready--> idle
                           |  not ready after _PATIENCE: publish, compare; mismatch: report and exit
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

#: Seconds between checks, and after which an unfinished program counts as stalled.
_PERIOD, _PATIENCE = 2.0, 4.0


@dataclass
class _PendingLaunch:
    signature: Sequence[str]
    label: str
    since: float = field(default_factory=time.monotonic)
    #: This process's shard of the smallest result, until it is ready; None before the launch returns and afterwards.
    result: jax.Array | None = None
    done: bool = False


_latest: _PendingLaunch | None = None
_thread: threading.Thread | None = None


def _report_and_exit(message: str) -> None:
    sys.stderr.write(f"torch_xla: {message}\n")
    sys.stderr.flush()
    coordination.notify_exit()
    os._exit(1)


#: Handles the message of a deadlock. May not return.
report: Callable[[str], None] = _report_and_exit


def on_launch(signature: Sequence[str], members: ReplicaGroup) -> None:
    """Start watching a launch of the replica group; ``signature`` is that of collective_check."""
    global _latest, _thread
    _latest = _PendingLaunch(signature, collective_check.count_launch(members))
    if _thread is None:
        _thread = threading.Thread(target=_watch, name="torch_xla watchdog", daemon=True)
        _thread.start()


def on_launched(results: Sequence[jax.Array], smallest: int) -> None:
    """Record that the launch returned; the program is done when its result at index ``smallest`` is ready."""
    if _latest is not None:
        _latest.result = results[smallest].addressable_data(0)


def _is_progressing(launch: _PendingLaunch) -> bool:
    result: Any = launch.result
    if result is not None and (result.is_deleted() or result.is_ready()):
        launch.done, launch.result = True, None
    return launch.done


def wait_for_last() -> None:
    """Wait for the latest program, which other ranks need too. Errors are raised where its results are read."""
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
            collective_check.compare_signatures(launch.signature, f"stalled/{launch.label}")
        except collective_check.CollectiveMismatchError as error:
            if launch is _latest:
                report(str(error))
        except RuntimeError:
            return  # the job has ended, or this process has left it
