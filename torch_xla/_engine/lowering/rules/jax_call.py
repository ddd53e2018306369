"""Calls of jax functions as the torch operator ``torch_xla::jax_call``, one graph node per call.

A node identifies its function by number. Each distinct program has a permanent number: two functions that lower to the
same StableHLO and call the same Python functions share it. A graph that calls a function object created at each step
therefore has the same key at each step.
"""

from __future__ import annotations

import itertools
import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch

from torch_xla._engine.base import lru_cache
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.lowering.registry import TensorSpec, lower

#: Maximum number of registered functions. A pending call of an evicted function cannot be lowered any more.
LIMIT = 8192
OP = "torch_xla::jax_call"


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A jax function of ``arity`` arrays of fixed shapes and dtypes, its name in programs, and its output specs.

    ``bytes``: total size of the arrays that it captures as constants.
    """

    name: str
    arity: int
    call: Callable[..., Sequence[jax.Array]]
    outs: tuple[TensorSpec, ...]
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    """A function in the table, and its state.

    added -> pending on the devices that recorded a call -> idle (not pending, and unused since the last trim()):
    may be evicted if the table is full
    """

    key: Hashable
    function: RegisteredFunction
    used_at: int  # number of trim() calls before the last use
    pending_on: set[int] = field(default_factory=set)
    plans: int = 0  # number of plans by which the recorder records calls without Python, on unknown devices


#: Number of functions that were evicted while calls of them may have been pending.
forgotten = 0
_entries: OrderedDict[int, _Entry] = OrderedDict()  # least recently used first
_numbers: dict[Hashable, int] = {}  # key -> number
_bytes = 0
_trims = 0
_ended_plans: deque[int] = deque()  # function numbers of destroyed plans; a plan may be destroyed under any lock
_lock = fork_safe_lock()
_next = itertools.count(1)


def register_function(key: Hashable, function: RegisteredFunction) -> int:
    """Register a function and return its number; ``key`` identifies its program, name, results and callbacks."""
    with _lock:
        number = _numbers.get(key)
        if number is None:
            number = _numbers[key] = next(_next)
        gone = _use(number, key, function)[1]
    del gone  # outside the lock: destroying an entry may run arbitrary code
    return number


def _use(number: int, key: Hashable, function: RegisteredFunction) -> tuple[_Entry, list[_Entry]]:
    """Return the entry of a number, added if missing, and the entries evicted for it."""
    global _bytes, forgotten
    gone = []
    entry = _entries.get(number)
    if entry is None:
        entry = _entries[number] = _Entry(key, function, _trims)
        _bytes += function.bytes
        while len(_entries) > LIMIT:
            forgotten += 1
            gone.append(_remove(next(iter(_entries))))
            _numbers.pop(gone[-1].key, None)
    entry.used_at = _trims
    _entries.move_to_end(number)
    return entry, gone


def _remove(number: int) -> _Entry:
    global _bytes
    entry = _entries.pop(number)
    _bytes -= entry.function.bytes
    return entry


def note_use(number: int, key: Hashable, function: RegisteredFunction, device: int) -> None:
    """Note that a call of the function is, or will be, pending on a device; register it again if it was evicted."""
    with _lock:
        entry, gone = _use(number, key, function)
        _numbers.setdefault(key, number)
        entry.pending_on.add(device)
    del gone


def note_plan(number: int, key: Hashable, function: RegisteredFunction, plan: object) -> None:
    """Note that the recorder records calls of the function without Python while ``plan`` is alive."""
    with _lock:
        entry, gone = _use(number, key, function)
        _numbers.setdefault(key, number)
        entry.plans += 1
    weakref.finalize(plan, _ended_plans.append, number).atexit = False
    del gone


def is_full() -> bool:
    """Return whether the functions hold more bytes of constants than allowed; trim() then evicts some."""
    return _bytes > lru_cache.ROOM


def trim(device: int, devices: int) -> None:
    """Evict functions that no graph needs, least recently used first, until the table is within its limits.

    Call it when nothing is pending on ``device``, one of ``devices``. An evicted function that is registered again gets
    the same number, so that cached programs that call it are found.
    """
    global _trims
    removed: list[Any] = []
    with _lock:
        while _ended_plans:
            if (ended := _entries.get(_ended_plans.popleft())) is not None:
                ended.plans -= 1
                ended.pending_on.update(range(devices))
        for number, entry in list(_entries.items()):
            entry.pending_on.discard(device)
            if _bytes > lru_cache.ROOM and entry.function.bytes and _is_idle(entry):
                removed.append(_remove(number))
        _trims += 1
        if len(_numbers) > 4 * LIMIT:
            removed += [_numbers.pop(key) for key, number in list(_numbers.items()) if number not in _entries]
    del removed  # outside the lock: destroying an entry may run arbitrary code


def _is_idle(entry: _Entry) -> bool:
    return not entry.pending_on and not entry.plans and entry.used_at < _trims


def bytes_of(nodes: Iterable[Any]) -> int:
    """Return the bytes of the constants of all functions that these nodes (of a GraphSpec) call."""
    numbers = {node.args[1][1] for node in nodes if node.op == OP}
    with _lock:
        return sum(_entries[number].function.bytes for number in numbers if number in _entries)


def held_bytes() -> int:
    """Return the bytes of the constants of all registered functions."""
    return _bytes


def is_registered(number: int) -> bool:
    """Return whether a function is still registered; if so, mark it as most recently used."""
    with _lock:
        if number not in _entries:
            return False
        _entries.move_to_end(number)
        return True


def find_function(number: int) -> RegisteredFunction | None:
    """Return the function of a number; None if it was evicted."""
    with _lock:
        entry = _entries.get(number)
    return entry.function if entry is not None else None


def _function(number: int) -> RegisteredFunction:
    found = find_function(number)
    if found is None:
        raise RuntimeError(
            f"torch_xla::jax_call: function {number} was evicted after {LIMIT} other functions were called; "
            "call torch_xla.sync() more often, and reuse one function object instead of creating new ones"
        )
    return found


def _jax_call_meta(inputs: Sequence[torch.Tensor], function: int, name: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in _function(function).outs]


@lower(OP)
def _jax_call(inputs: Sequence[jax.Array], function: int, name: str) -> list[jax.Array]:
    found = _function(function)
    return list(
        found.call(*inputs[: found.arity])
    )  # a call without arguments has one input as well: see capture/jax_function.py


_library = torch.library.Library("torch_xla", "FRAGMENT")


def define() -> None:
    """Register the operator with torch, once."""
    _library.impl(
        _library.define("jax_call(Tensor[] inputs, int function, str name) -> Tensor[]"), _jax_call_meta, "Meta"
    )
