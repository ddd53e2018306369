"""What the processes of test_process_tree.py run: a parent that spawns two workers, which print their pids."""

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
    """Writes a line at once, so that lines of several processes do not mix."""
    os.write(1, f"{text}\n".encode())


def work(index: int, kind: str, folder: str) -> None:
    """A worker: saves at SIGTERM, fails at it, or dies by it; returns once there is a file ``end``."""
    asked = threading.Event()
    if kind != "dies":
        signal.signal(signal.SIGTERM, lambda *_: asked.set())
    say(f"started {index} {os.getpid()}")
    deadline = time.monotonic() + LIMIT
    while not asked.wait(0.05) and time.monotonic() < deadline:
        if Path(folder, "end").exists():
            return
    if kind == "fails":
        raise OSError("no space left on the device")
    time.sleep(0.5 * index)  # the parent does not end the others when the first has saved
    Path(folder, f"saved{index}").touch()


def note(number: int, frame: FrameType | None) -> None:
    """A handler that goes on."""
    say("noted")


def leave(number: int, frame: FrameType | None) -> None:
    """A handler that ends the process."""
    sys.exit(7)


HANDLERS = {"none": signal.SIG_DFL, "notes": note, "exits": leave, "ignores": signal.SIG_IGN}


def announce_wait() -> None:
    """Prints a line when this process begins to wait for its workers: it handles signals then."""
    original = connection.wait

    def wait(*args: Any) -> Any:
        connection.wait = original
        say("waiting")
        return original(*args)

    connection.wait = wait


def spawn(kind: str, handler: str, folder: str) -> None:
    """A parent that waits for its workers with a handler of SIGTERM."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which shells switch off in the background
    signal.signal(signal.SIGTERM, HANDLERS[handler])
    announce_wait()
    xmp.spawn(work, (kind, folder), nprocs=2, start_method="fork")
    assert signal.getsignal(signal.SIGTERM) == HANDLERS[handler]
    say("returned")


def spawn_from_thread(method: str, folder: str) -> None:
    """A parent whose workers are started by a thread, which ends before they do."""
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
