"""Forward SIGTERM to workers: docker stop and Kubernetes send it only to the process that waits for them.

    installed (with, in the main thread) -> forwarded (by the first SIGTERM) -> restored (at the end of the block)

The workers receive the signal, too, and have TORCH_XLA_GRACE_PERIOD seconds to save their state. A handler of the user
is called after that and decides how the waiting process continues; if SIGTERM is ignored, nothing is sent.
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
    """Owns the SIGTERM handler while its block runs. ``forward`` sends the signal to the workers."""

    def __init__(self, forward: Callable[[], None]) -> None:
        self._forward_to_workers, self._owner = forward, os.getpid()
        self._previous: Any = None
        #: End of the workers' grace period, by time.monotonic(); None before SIGTERM.
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
        if self.ends_process:  # SIGTERM arrived after the workers had exited
            end_by_sigterm([], [])

    @property
    def ends_process(self) -> bool:
        """Whether SIGTERM has arrived and must end this process, because the user installed no handler."""
        return self.deadline is not None and not callable(self._previous)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._owner:  # in a fork that another thread has made: the workers are not its children
            signal.signal(number, self._previous)
            os.kill(os.getpid(), number)
            return
        if self.deadline is None:
            self.deadline = time.monotonic() + settings.TORCH_XLA_GRACE_PERIOD
            self._forward_to_workers()
        if callable(self._previous):
            self._previous(number, frame)


def end_by_sigterm(late: Sequence[int], errors: Sequence[str]) -> NoReturn:
    """End this process by SIGTERM, after reporting the workers that were killed and the errors."""
    for error in errors:
        print(error, file=sys.stderr)
    if late:
        print(
            f"torch_xla: spawn killed process {', '.join(map(str, late))}, which still ran "
            f"{settings.TORCH_XLA_GRACE_PERIOD} s (TORCH_XLA_GRACE_PERIOD) after SIGTERM",
            file=sys.stderr,
        )
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGTERM)
    os._exit(128 + signal.SIGTERM)  # process 1 of a container ignores a signal without a handler
