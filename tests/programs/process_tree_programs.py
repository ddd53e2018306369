"""Programs of test_process_tree.py: a parent that spawns two workers, which print their pids."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing import connection, set_forkserver_preload
from pathlib import Path
from types import FrameType
from typing import Any

import torch_xla.distributed.xla_multiprocessing as xmp

#: Seconds after which a test has failed: no process of these waits longer.
LIMIT = 300


def say(text: str) -> None:
    """Write a line with one system call, so that lines of several processes do not mix."""
    os.write(1, f"{text}\n".encode())


def work(index: int, kind: str, folder: str) -> None:
    """A worker that saves on SIGTERM, fails on it, or dies by it; returns when the file ``end`` exists."""
    received: list[int] = []  # an Event has a lock, which the loop below may hold when the signal arrives
    if kind != "dies":
        signal.signal(signal.SIGTERM, lambda number, _: received.append(number))
    say(f"started {index} {os.getpid()}")
    deadline = time.monotonic() + LIMIT
    while not received and time.monotonic() < deadline:
        if Path(folder, "end").exists():
            return
        time.sleep(0.05)
    if kind == "fails":
        raise OSError("no space left on the device")
    time.sleep(0.5 * index)  # the parent must not end the others after the first has saved
    Path(folder, f"saved{index}").touch()


def note(number: int, frame: FrameType | None) -> None:
    """A signal handler that returns."""
    say("noted")


def leave(number: int, frame: FrameType | None) -> None:
    """A signal handler that ends the process."""
    sys.exit(7)


HANDLERS = {"none": signal.SIG_DFL, "notes": note, "exits": leave, "ignores": signal.SIG_IGN}


def announce_wait() -> None:
    """Print a line when this process starts to wait for its workers and handles signals."""
    original = connection.wait

    def wait(*args: Any) -> Any:
        connection.wait = original
        say("waiting")
        return original(*args)

    connection.wait = wait


def spawn(kind: str, handler: str, folder: str) -> None:
    """A parent with a SIGTERM handler that waits for its workers."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # shells ignore it for background jobs
    signal.signal(signal.SIGTERM, HANDLERS[handler])
    announce_wait()
    xmp.spawn(work, (kind, folder), nprocs=2, start_method="fork")
    assert signal.getsignal(signal.SIGTERM) == HANDLERS[handler]
    say("returned")


def spawn_from_thread(method: str, folder: str) -> None:
    """A parent that starts its workers on a thread, which ends before they do."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    set_forkserver_preload(["tests.programs.process_tree_programs"])
    contexts = []

    def start() -> None:
        contexts.append(xmp.spawn(work, ("dies", folder), nprocs=2, join=False, start_method=method))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    while Path(f"/proc/self/task/{thread.native_id}").exists():
        time.sleep(0.01)
    say("thread ended")
    contexts[0].join()
    say("returned")


if __name__ == "__main__":
    {"spawn": spawn, "spawn_from_thread": spawn_from_thread}[sys.argv[1]](*sys.argv[2:])
