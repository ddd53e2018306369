"""Observe SIGTERM, which schedulers send before they preempt a host."""

from __future__ import annotations

import signal
import threading
from dataclasses import dataclass
from types import FrameType


@dataclass
class PreemptionNotice:
    """Whether SIGTERM has arrived.

    The handler only assigns. ``threading.Event.set`` acquires a lock that the code which the signal interrupts, a
    handler of an earlier SIGTERM for example, may hold: the process would wait forever.
    """

    has_arrived: bool = False


_notice: PreemptionNotice | None = None


def watch_sigterm() -> PreemptionNotice:
    """Return a notice that SIGTERM sets; SIGTERM then only runs a handler that the user has installed."""
    global _notice
    if _notice is not None:
        return _notice
    notice = PreemptionNotice()
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTERM)

        def record_arrival(number: int, frame: FrameType | None) -> None:
            notice.has_arrived = True
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, record_arrival)
        _notice = notice
    return notice
