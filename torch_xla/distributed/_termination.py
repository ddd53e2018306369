"""SIGTERM to a process that waits for its workers: docker stop and Kubernetes send it to that process alone.

    installed (with, in the main thread) -> forwarded (by the first SIGTERM) -> restored (at the end of the block)

The workers get the signal, too, and TORCH_XLA_GRACE_PERIOD seconds to save what they have to. A handler of the user's
is called after that and decides how the waiting process goes on; a SIGTERM that it ignores is ignored.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from torch_xla._engine.base.settings import settings


class SignalForwarder:
    """Owns the handler of SIGTERM while its block runs. ``forward`` sends the signal to the workers."""

    def __init__(self, forward: Callable[[], None]) -> None:
        self._forward_to_workers, self._owner = forward, os.getpid()
        self._previous: Any = None
        #: When the workers' grace period ends, by time.monotonic(); None before SIGTERM.
        self.deadline: float | None = None

    def __enter__(self) -> SignalForwarder:
        if threading.current_thread() is threading.main_thread():
            previous = signal.getsignal(signal.SIGTERM)
            if previous is signal.SIG_DFL or callable(previous):
                self._previous = previous
                signal.signal(signal.SIGTERM, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None and signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, self._previous)
        if self.ends_process:  # it came when the workers had ended already
            end_by_sigterm([], [])

    @property
    def ends_process(self) -> bool:
        """Whether SIGTERM has come and, as there is no handler of the user's, is to end this process."""
        return self.deadline is not None and not callable(self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # a fork that another thread has made: the workers are not its own
            signal.signal(number, self._previous)
            os.kill(os.getpid(), number)
            return
        if self.deadline is None:
            self.deadline = time.monotonic() + settings.TORCH_XLA_GRACE_PERIOD
            self._forward_to_workers()
        if callable(self._previous):
            self._previous(number, frame)


def end_by_sigterm(late: Sequence[int], errors: Sequence[str]) -> NoReturn:
    """Ends this process as SIGTERM does, after it has written which workers had to be killed, and what failed."""
    for error in errors:
        print(error, file=sys.stderr)
    if late:
        print(
            f"torch_xla: spawn killed process {', '.join(map(str, late))}, still running "
            f"{settings.TORCH_XLA_GRACE_PERIOD} s (TORCH_XLA_GRACE_PERIOD) after SIGTERM",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # process 1 of a container is immune to a signal without a handler
