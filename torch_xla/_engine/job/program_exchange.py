"""Agree which process of a job compiles a program, through the key-value store; the others wait and take the result.

Of a program that several processes need, each calls ``Exchange.take_turn`` with the program's name:

    turn 0: a hash of the name chooses a rank, which claims the turn; the others wait _CLAIM_TIMEOUT for its
            claim, and then the first of them claims: a rank may not need the program at all
    the owner of the turn compiles, and publishes the outcome:    PATH of the program's file, BYTES, or FAILED
    the others wait for the outcome while the owner is alive:     it writes a beat every _HEARTBEAT_INTERVAL seconds
    no beat for _HEARTBEAT_TIMEOUT: the next turn, which the first of those that wait claims

Keys under torch_xla/program/NAME/: owner/TURN, beat/TURN, outcome/TURN, bytes, taken. They exist as long as the job,
except the bytes, which are deleted when every other process of the program has taken them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import jax

from torch_xla._engine.job import coordination, replicas

#: Seconds: between two beats of a process that compiles; without a beat, after which it is taken for dead; and that the
#: others give the chosen rank to claim the first turn.
_HEARTBEAT_INTERVAL, _HEARTBEAT_TIMEOUT, _CLAIM_TIMEOUT = 1.0, 10.0, 0.5

#: Milliseconds in which the key-value store of a busy machine returns a value that exists.
_REPLY_TIMEOUT = 60_000

_FAILED = b"failed"


@dataclass(frozen=True, slots=True)
class CompileTurn:
    """This process owns the turn: it compiles, and calls ``publish`` with the outcome."""

    number: int


@dataclass(frozen=True, slots=True)
class CompileOutcome:
    """Another process owned the turn. Without ``file`` and ``data`` it could not compile or send the program."""

    owner: int
    file: Path | None = None
    data: bytes | None = None


class Exchange:
    """The exchange of one program among the processes that may need it. Used by one thread, for one compilation.

    Args:
      name: names the program: equal in two processes that may share it.
      members: the ranks that may need it.
    """

    def __init__(self, name: str, members: Sequence[int]) -> None:
        self._place = f"torch_xla/program/{name}"
        self._members, self._rank = members, replicas.process_index()
        self._chosen = members[int(name[:8], 16) % len(members)]
        self._store = coordination.coordination_client()
        self.replaced = 0  # owners that died

    def take_turn(self) -> CompileTurn | CompileOutcome:
        """Return a CompileTurn if this process must compile, else the outcome of the process that did. Waits for it."""
        turn = 0
        while True:
            owner = self._claim(turn)
            if owner == self._rank:
                return CompileTurn(turn)
            outcome = self._wait_for_outcome(turn)
            if outcome is not None:
                return self._parse(owner, outcome)
            self.replaced += 1
            turn += 1

    def _claim(self, turn: int) -> int:
        """Return the owner of a turn: this process, unless another has claimed the turn."""
        key = f"{self._place}/owner/{turn}"
        if turn == 0 and self._rank != self._chosen:
            claimed = self._get(key, _CLAIM_TIMEOUT)
            if claimed is not None:
                return int(claimed)
        try:
            self._store.key_value_set_bytes(key, str(self._rank).encode())
            return self._rank
        except jax.errors.JaxRuntimeError as error:
            if "ALREADY_EXISTS" not in str(error):
                raise
        return int(self._store.blocking_key_value_get_bytes(key, _REPLY_TIMEOUT))

    def _wait_for_outcome(self, turn: int) -> bytes | None:
        """Return the outcome of a turn; None if its owner has died."""
        last, since = None, time.monotonic()
        while True:
            # Ctrl-C is handled between two calls.
            outcome = self._get(f"{self._place}/outcome/{turn}", _HEARTBEAT_INTERVAL)
            if outcome is not None:
                return outcome
            beat = self._find(f"beat/{turn}")
            if beat != last:
                last, since = beat, time.monotonic()
            elif time.monotonic() - since > _HEARTBEAT_TIMEOUT:
                return None

    def _find(self, key: str) -> bytes | None:
        """Return a value; None if there is none now."""
        try:
            found: bytes = self._store.key_value_try_get_bytes(f"{self._place}/{key}")
            return found
        except jax.errors.JaxRuntimeError as error:
            if "NOT_FOUND" not in str(error):
                raise
            return None

    def _parse(self, owner: int, outcome: bytes) -> CompileOutcome:
        if outcome == _FAILED:
            return CompileOutcome(owner)
        path = Path(outcome.decode(errors="surrogateescape"))
        if path != Path() and path.exists():
            return CompileOutcome(owner, file=path)
        data = self._find("bytes")
        if data is not None and self._store.key_value_increment(f"{self._place}/taken", 1) == len(self._members) - 1:
            self._store.key_value_delete(f"{self._place}/bytes")
        return CompileOutcome(owner, data=data)

    def publish(self, turn: CompileTurn, file: Path | None, data: bytes | None) -> None:
        """Announce that the program is in a file, or, on other machines, in ``data``; neither: that it is not."""
        if file is None and data is None:
            self._set(f"outcome/{turn.number}", _FAILED)
            return
        if data is not None:
            self._set("bytes", data)
        self._set(f"outcome/{turn.number}", str(file or Path()).encode(errors="surrogateescape"))

    @contextmanager
    def announce_life(self, turn: CompileTurn) -> Iterator[None]:
        """In the block, write a beat every second; after an exception, announce that there is no program."""
        ended = threading.Event()

        def beat() -> None:
            count = 0
            while not ended.wait(_HEARTBEAT_INTERVAL):
                count += 1
                with suppress(jax.errors.JaxRuntimeError):  # the job ends
                    self._set(f"beat/{turn.number}", str(count).encode())

        thread = threading.Thread(target=beat, name="torch_xla compiling", daemon=True)
        thread.start()
        try:
            yield
        except BaseException:
            with suppress(jax.errors.JaxRuntimeError):
                self.publish(turn, None, None)
            raise
        finally:
            ended.set()
            thread.join()

    def _set(self, key: str, value: bytes) -> None:
        self._store.key_value_set_bytes(f"{self._place}/{key}", value, allow_overwrite=True)

    def _get(self, key: str, seconds: float) -> bytes | None:
        """Return a value; None if no process has set it within the time."""
        try:
            found: bytes = self._store.blocking_key_value_get_bytes(key, max(1, int(1000 * seconds)))
            return found
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
            return None
