"""The local side of a script that runs on a worker: its output, its exit code, and its termination."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import IO

from torch_xla.distributed.launcher import heartbeats
from torch_xla.distributed.launcher.workers import Worker

_LINE_END = re.compile(rb"\r\n|\n|\r")
_print_lock = threading.Lock()


class WorkerProcess:
    """Started by the constructor -> ended, by itself or by ``end()``. Owns a local process and two reader threads.

    The worker's script ends its command when its standard input, which this process holds open, is closed: also if this
    process is killed. First it reads ``exports``, the line of its variables, from there. Complete lines of the worker
    go to this process's stdout and stderr, prefixed with the worker's ordinal; step log lines become heartbeats.
    """

    def __init__(
        self,
        worker: Worker,
        script: str,
        exports: str,
        on_step: Callable[[int], None],
        on_end: Callable[[int], None],
    ) -> None:
        self.worker = worker
        self._on_step, self._on_end = on_step, on_end
        self._process = subprocess.Popen(
            worker.argv(script),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is for the launcher only
        )
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(os.fsencode(f"{exports}\n\n"))
            self._process.stdin.flush()
        streams = ((self._process.stdout, sys.stdout), (self._process.stderr, sys.stderr))
        self._readers = [threading.Thread(target=self._read, args=pair, daemon=True) for pair in streams]
        self._waiter = threading.Thread(target=self._wait, daemon=True)
        for thread in (*self._readers, self._waiter):
            thread.start()

    @property
    def code(self) -> int | None:
        """The exit code as in a shell (128 + signal number for a signal); None while it runs."""
        code = self._process.poll()
        return code if code is None or code >= 0 else 128 - code

    def request_end(self) -> None:
        """Request the remote script to end its command."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def ended_within(self, seconds: float) -> bool:
        """Wait until it has ended and its output has been read; return whether that was within the time."""
        self._waiter.join(seconds)
        return not self._waiter.is_alive()

    def kill(self) -> None:
        """Kill the local process: the shell, or the connection to the worker."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def _wait(self) -> None:
        self._process.wait()
        for reader in self._readers:
            reader.join(5)  # bounded: another process may have inherited the streams
        self._on_end(self.worker.ordinal)

    def _read(self, source: IO[bytes], sink: IO[str]) -> None:
        rest = b""
        with source:
            while chunk := os.read(source.fileno(), 65536):
                *lines, rest = _LINE_END.split(rest + chunk)
                for line in lines:
                    self._forward_output(line, sink)
        if rest:
            self._forward_output(rest, sink)

    def _forward_output(self, line: bytes, sink: IO[str]) -> None:
        text = line.decode(errors="replace")
        if heartbeats.ends_with_step(text):
            self._on_step(self.worker.ordinal)
            if heartbeats.is_step(text):
                return
        with _print_lock, contextlib.suppress(BrokenPipeError, ValueError):
            sink.write(f"[{self.worker.ordinal}] {text}\n")
            sink.flush()
