"""Sends and receives of torch.distributed, which run together when one of them is waited for.

XLA runs a message as a program of its two replicas, and a replica runs its programs one after the other. In a ring
(``isend`` to the next rank, ``irecv`` from the previous one) every rank names its send first, so the order of the calls
cannot be the order of the programs: the two ranks of a message would come to different programs. So a call only
queues its message, and ``run_pending`` runs the queue in an order that is the same on all ranks:

    by the lower rank of the two, the higher rank, the sender, and then in the order of the calls

Two ranks never wait for each other then: of all messages that have not run, both ranks of the first one come to it.

A step barrier does not run the queue: where two ranks send, sync and then receive, the barrier of each would run its
own send alone. A send that nobody waits for runs at the next collective, or at the end of the process
(``send_at_end``).
"""

from __future__ import annotations

import atexit
import os
import sys
import traceback
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compat import process_exit
from torch_xla._engine.execution.eager_collectives import EagerCollectives
from torch_xla._engine.job import coordination
from torch_xla._engine.parallel import collectives


@dataclass(eq=False)
class Message:
    """One send or receive of this rank. Queued, then run or failed; ``target``: where a received value goes.

    ``source`` and ``receiver`` are ordinals of the job. The tensors are dropped when it has run.
    """

    source: int
    receiver: int
    value: torch.Tensor | None
    target: torch.Tensor | None = None
    error: BaseException | None = field(default=None, repr=False)

    @property
    def order(self) -> tuple[int, int, int]:
        """Its place among the messages of a batch; equal for those that keep the order of their calls."""
        return min(self.source, self.receiver), max(self.source, self.receiver), self.source

    def run(self) -> None:
        """Runs the program of the two replicas."""
        pair = [self.source, self.receiver]
        assert self.value is not None
        with EagerCollectives(True):
            moved = collectives.collective_permute(self.value, [pair], collectives.PartialGroup([sorted(pair)]))
        if self.target is not None:
            with torch.no_grad():
                self.target.copy_(moved)


_queued: list[Message] = []
_lock = fork_safe_lock()
_runs = fork_safe_lock()  # one thread at a time runs messages, in order


def run_pending() -> None:
    """Run all queued messages. After an error the rest of them fails as well, where it is waited for."""
    if not _queued:
        return
    with _runs:
        with _lock:
            batch = sorted(_queued, key=lambda message: message.order)
            _queued.clear()
        failed: BaseException | None = None
        for message in batch:
            try:
                if failed is None:
                    message.run()
            except BaseException as error:
                failed = error
            message.error = failed
            message.value = message.target = None
        if failed is not None:
            raise failed


class MessageWork(dist.Work):
    """The Work of one message: waiting for it runs all queued messages."""

    def __init__(self, message: Message, result: list[torch.Tensor]) -> None:
        super().__init__()
        self._message, self._result = message, result

    def wait(self, timeout: Any = None) -> bool:
        run_pending()
        if self._message.error is not None:
            raise self._message.error
        return True

    def is_completed(self) -> bool:
        return self.wait()

    def is_success(self) -> bool:
        return self._message.error is None

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._result

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        future: torch.futures.Future[Any] = torch.futures.Future()
        future.set_result(self._result)
        return future


def enqueue_message(message: Message, result: list[torch.Tensor]) -> dist.Work:
    """Queue a message, to run when it is waited for or at the next collective."""
    with _lock:
        _queued.append(message)
    return MessageWork(message, result)


def send_at_end() -> str:
    """Run queued messages at the end of the process. Return the report of a failure; empty without.

    Receives alone are dropped: nobody can read what they would bring.
    """
    if coordination.exited_with_error() or all(message.target is not None for message in _queued):
        return ""
    try:
        run_pending()
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        return f"torch_xla: a dist.isend that nobody waited for failed at the end of the process:\n{trace}"
    return ""


def _send_at_exit() -> None:
    if report := send_at_end():
        if sys.stderr is not None:
            sys.stderr.write(report)
        process_exit.set_exit_code(1)


# Registered after the engine's own functions, so it runs before them: the device is still there.
atexit.register(_send_at_exit)
os.register_at_fork(after_in_child=_queued.clear)  # the parent sends its own messages
