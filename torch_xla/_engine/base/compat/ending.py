"""The end of a process: what Python's own library does in it, and when."""

from __future__ import annotations

import atexit

from torch_xla._engine.base.compat.private import Private

_SEND = Private(
    "multiprocessing.util",
    "_exit_function",
    "values that are still on their way to other processes are sent before the engine closes",
    "a process that ends right after queue.put() of an xla tensor hangs",
)


def send_queued_values_first() -> None:
    """Has multiprocessing send what is in its queues before any of the functions registered with atexit until now."""
    send = _SEND.find()
    if send is None:
        _SEND.warn()
        return
    atexit.unregister(send)
    atexit.register(send)
