"""The threads of one process that drive a replica each: they wait for each other in collectives, and exchange bytes.

The last thread to arrive does the work for all of them. A thread that has ended cannot come any more: who waits for it
gets an error that names it, instead of waiting forever.
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
    """Another replica's thread has ended, by an error or because it had nothing more to do."""


class _Round:
    """One round: what each replica brought, by position; later what each takes away, or what went wrong."""

    def __init__(self) -> None:
        self.brought: dict[int, tuple[str, Any]] = {}
        self.results: Sequence[Any] | None = None
        self.error: BaseException | None = None


class ThreadGroup:
    """``size`` threads, and the rounds in which they wait for each other, one after the other.

        round: collecting --(the last arrives)--> working --> done          collecting --(a thread leaves)--> abandoned

    ``cut`` runs what is pending on a device, ``compute`` makes sure that tensors have values: a collective among
    threads is a program of its own, between the two. The executor has both; it stands above this module.
    """

    def __init__(
        self, size: int, cut: Callable[[int], None], compute: Callable[[Sequence[torch.Tensor]], None]
    ) -> None:
        self.size, self.cut, self.compute = size, cut, compute
        self._round = _Round()
        self._gone: dict[int, str] = {}
        self._changed = threading.Condition()

    def run_together(self, position: int, what: str, item: Any, work: Callable[[list[Any]], Sequence[Any]]) -> Any:
        """Waits for all replicas; one of them calls ``work`` with all items, by position; returns this one's result.

        ``what`` must be the same everywhere: RuntimeError otherwise. AbandonedError where a replica cannot come.
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
            # An interrupt. Once all have come, the last works with what this thread brought: that must be over first.
            if len(own.brought) == self.size:
                while own.results is None and own.error is None:
                    with contextlib.suppress(BaseException):
                        self._changed.wait_for(lambda: own.results is not None or own.error)
            else:
                del own.brought[position]
            raise

    def leave(self, position: int, why: str) -> None:
        """Says that a replica does not come any more, and why: ``has returned``."""
        with self._changed:
            self._gone[position] = why
            self._changed.notify_all()

    def _raise_if_abandoned(self, own: _Round, what: str) -> None:
        if len(own.brought) == self.size:
            self._changed.wait_for(lambda: own.results is not None or own.error)
        elif self._gone:
            position, why = next(iter(self._gone.items()))
            raise AbandonedError(
                f"{what}: replica {position} {why}, and the others wait for it (at {user_frames.user_line()}). All replicas "
                "must make the same number of steps"
            )

    def _check(self, own: _Round) -> None:
        named = {what for what, _ in own.brought.values()}
        if len(named) > 1:
            each = "; ".join(f"replica {i}: {own.brought[i][0]}" for i in range(self.size))
            raise RuntimeError(f"the replicas meet for different things, so none of them can go on: {each}")

    def _taken(self, own: _Round, position: int) -> Any:
        if own.error is not None:
            raise RuntimeError(str(own.error)) from own.error  # each thread needs an exception of its own
        assert own.results is not None
        return own.results[position]


class _ThreadLocal(threading.local):
    """The group of this thread."""

    group: ThreadGroup | None = None


_here = _ThreadLocal()


@contextlib.contextmanager
def thread_replica(group: ThreadGroup, devices: Sequence[int], position: int) -> Iterator[None]:
    """In the block this thread is the replica on ``devices[position]``. At its end it leaves the group."""
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
    """The group of this thread, None for a thread that is not one of several replicas."""
    return _here.group


def all_gather_bytes(group: ThreadGroup, what: str, payload: bytes) -> list[bytes]:
    """What each replica gave, by ordinal, when all have come."""
    everything: list[bytes] = group.run_together(
        replicas.global_ordinal(), what, payload, lambda items: [list(items) for _ in items]
    )
    return everything
