"""Queue sends and receives of torch.distributed and run them in the same order on all ranks.

XLA runs a message as a program of its two replicas, and a replica runs its programs one after another. In a ring
(``isend`` to the next rank, ``irecv`` from the previous one) every rank calls its send first, so the order of the calls
cannot be the order of the programs: the two ranks of a message would launch different programs. So a call only queues
its message, and ``run_pending`` runs the queue in an order that is the same on all ranks:

    by the lower rank of the two, the higher rank, the sender, and then the order of the calls

This order is free of deadlocks: of all messages that have not run, both ranks of the first one reach it.

A step barrier does not run the queue: if two ranks send, sync and then receive, the barrier of each would run only its
send. A send that is never waited for runs at the next collective, or at the end of the process (``send_at_end``).
"""

from __future__ import annotations

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
    """A send or receive of this rank: queued, then run or failed. ``target`` receives a value.

    ``source`` and ``receiver`` are ordinals of the job. The tensors are dropped after it has run.
    """

    source: int
    receiver: int
    value: torch.Tensor | None
    target: torch.Tensor | None = None
    error: BaseException | None = field(default=None, repr=False)

    @property
    def order(self) -> tuple[int, int, int]:
        """Return the sort key within a batch; messages with equal keys stay in call order."""
        return min(self.source, self.receiver), max(self.source, self.receiver), self.source

    def run(self) -> None:
        """Run the program of the two replicas."""
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
    """Run all queued messages. After an error the remaining messages fail, too, when they are waited for."""
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
    """The Work of one message: ``wait`` runs all queued messages."""

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
    """Run queued messages at the end of the process. Return the report of a failure, or an empty string.

    Receives without a send are dropped: no code can read their values.
    """
    if coordination.exited_with_error() or all(message.target is not None for message in _queued):
        return ""
    try:
        run_pending()
    except BaseException as error:
        trace = "".join(traceback.format_exception(error))
        return f"torch_xla: a dist.isend without wait() failed at the end of the process:\n{trace}"
    return ""


def _send_at_exit() -> None:
    if report := send_at_end():
        if sys.stderr is not None:
            sys.stderr.write(report)
        process_exit.set_exit_code(1)


# Registered after the engine's exit functions, so it runs before them, while the device exists.
process_exit.register_at_exit(_send_at_exit)
os.register_at_fork(after_in_child=_queued.clear)  # the parent sends its own messages
