"""Synchronize the replica threads of one process: rendezvous in collectives, and all-gather of bytes.

The last thread to arrive does the work for all. A thread that has ended cannot arrive any more: threads that wait for
it get an error that names it, instead of waiting forever.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from torch_xla._engine.base import user_frames
from torch_xla._engine.job import replicas


class AbandonedError(RuntimeError):
    """Another replica's thread has ended, by an error or by returning."""


class _Round:
    """One round: the item of each replica, by position; later its result, or the error."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[str, Any]] = {}
        self.results: Sequence[Any] | None = None
        self.error: BaseException | None = None


class ThreadGroup:
    """``size`` replica threads, and the consecutive rounds in which they synchronize.

        round: collecting --(the last arrives)--> working --> done          collecting --(a thread leaves)--> abandoned

    ``cut`` flushes the graph of a device, ``compute`` ensures that tensors have values: a collective among threads is a
    separate program between the two. The executor implements both; it belongs to a higher layer than this module.
    """

    def __init__(
        self, size: int, cut: Callable[[int], None], compute: Callable[[Sequence[torch.Tensor]], None]
    ) -> None:
        self.size, self.cut, self.compute = size, cut, compute
        self._round = _Round()
        self._gone: dict[int, str] = {}
        self._changed = threading.Condition()

    def run_together(self, position: int, what: str, item: Any, work: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Wait for all replicas; one of them calls ``work`` with all items, by position; return this replica's result.

        ``what`` must be equal in all threads: RuntimeError otherwise. Raises AbandonedError if a replica cannot arrive.
        """
        with self._changed:
            own = self._round
            own.brought[position] = what, item
            if len(own.brought) < self.size:
                self._wait(own, position)
                self._raise_if_abandoned(own, what)
                return self._taken(own, position)
            self._round = _Round()
        try:
            self._check(own)
            own.results = work([own.brought[i][1] for i in range(self.size)])
        except BaseException as error:
            own.error = error
        with self._changed:
            self._changed.notify_all()
        return self._taken(own, position)

    def _wait(self, own: _Round, position: int) -> None:
        try:
            self._changed.wait_for(lambda: own.results is not None or own.error or self._gone)
        except BaseException:
            # An interrupt. If all have arrived, the last one is using this thread's item: wait until it is done.
            if len(own.brought) == self.size:
                while own.results is None and own.error is None:
                    with contextlib.suppress(BaseException):
                        self._changed.wait_for(lambda: own.results is not None or own.error)
            else:
                del own.brought[position]
            raise

    def leave(self, position: int, why: str) -> None:
        """Report that a replica will not arrive any more, and why: ``has returned``."""
        with self._changed:
            self._gone[position] = why
            self._changed.notify_all()

    def _raise_if_abandoned(self, own: _Round, what: str) -> None:
        if len(own.brought) == self.size:
            self._changed.wait_for(lambda: own.results is not None or own.error)
        elif self._gone:
            position, why = next(iter(self._gone.items()))
            raise AbandonedError(
                f"{what}: replica {position} {why}, and the others wait for it (at {user_frames.user_line()}). All "
                "replicas must run the same number of steps"
            )

    def _check(self, own: _Round) -> None:
        named = {what for what, _ in own.brought.values()}
        if len(named) > 1:
            each = "; ".join(f"replica {i}: {own.brought[i][0]}" for i in range(self.size))
            raise RuntimeError(f"replicas reached different synchronization points: {each}")

    def _taken(self, own: _Round, position: int) -> Any:
        if own.error is not None:
            raise RuntimeError(str(own.error)) from own.error  # each thread needs a separate exception
        assert own.results is not None
        return own.results[position]


class _ThreadLocal(threading.local):
    """The group of this thread."""

    group: ThreadGroup | None = None


_here = _ThreadLocal()


@contextlib.contextmanager
def thread_replica(group: ThreadGroup, devices: Sequence[int], position: int) -> Iterator[None]:
    """In the block, make this thread the replica on ``devices[position]``. It leaves the group at the end."""
    why = "has failed"
    _here.group = group
    try:
        with replicas.replicate(devices, position):
            yield
        why = "has returned"
    finally:
        _here.group = None
        group.leave(position, why)


def current_group() -> ThreadGroup | None:
    """Return the group of this thread; None for a thread that is not one of several replicas."""
    return _here.group


def all_gather_bytes(group: ThreadGroup, what: str, payload: bytes) -> list[bytes]:
    """Return the payload of each replica, by ordinal, when all have arrived."""
    everything: list[bytes] = group.run_together(
        replicas.global_ordinal(), what, payload, lambda items: [list(items) for _ in items]
    )
    return everything
