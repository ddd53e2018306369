"""Observe SIGTERM, which schedulers send before they preempt a host."""

from __future__ import annotations

import signal
import threading
from types import FrameType

_sigterm: threading.Event | None = None


def watch_sigterm() -> threading.Event:
    """Return an event that SIGTERM sets; SIGTERM then only runs a handler that the user has installed."""
    global _sigterm
    if _sigterm is not None:
        return _sigterm
    event = threading.Event()
    if threading.current_thread() is threading.main_thread():
        before = signal.getsignal(signal.SIGTERM)

        def note(number: int, frame: FrameType | None) -> None:
            event.set()
            if callable(before):
                before(number, frame)

        signal.signal(signal.SIGTERM, note)
        _sigterm = event
    return event
