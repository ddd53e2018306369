"""Calls of jax functions as an operator of torch: ``torch_xla::jax_call``, one node of a graph for each call.

A node names its function by number. Numbers are given out for good, one for each different program: two functions that
lower to the same StableHLO and call the same Python functions have one number, so that a graph that calls a function
created at each step keeps its key.
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
from torch_xla._engine.lowering.registry import Promise, lower

#: So many functions are known at once; a pending call of one that had to go cannot be built any more.
LIMIT = 8192
OP = "torch_xla::jax_call"


@dataclass(frozen=True, slots=True)
class RegisteredFunction:
    """A function over ``arity`` arrays of fixed shapes and dtypes: what programs call it, and what it gives.

    ``bytes``: of the arrays that it holds as constants.
    """

    name: str
    arity: int
    call: Callable[..., Sequence[jax.Array]]
    outs: tuple[Promise, ...]
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Entry:
    """A function in the table.

    added -> pending on the devices that recorded a call -> pending nowhere, and unused since the last trim():
    may go where the table is too large
    """

    key: Hashable
    function: RegisteredFunction
    used_at: int  # how many times trim() had been called
    pending_on: set[int] = field(default_factory=set)
    plans: int = 0  # by which the recorder records calls of it without Python; where these are pending is unknown


#: How many functions had to go while calls of them may have been pending.
forgotten = 0
_entries: OrderedDict[int, _Entry] = OrderedDict()  # the least recently used first
_numbers: dict[Hashable, int] = {}  # of the entries, by key
_bytes = 0
_trims = 0
_ended_plans: deque[int] = deque()  # numbers of functions whose plans are gone; plans may end inside any lock
_lock = fork_safe_lock()
_next = itertools.count(1)


def register_function(key: Hashable, function: RegisteredFunction) -> int:
    """The number of a function; ``key`` stands for its program, name, results and callbacks."""
    with _lock:
        number = _numbers.get(key)
        if number is None:
            number = _numbers[key] = next(_next)
        gone = _use(number, key, function)[1]
    del gone  # without the lock: an entry may own anything
    return number


def _use(number: int, key: Hashable, function: RegisteredFunction) -> tuple[_Entry, list[_Entry]]:
    """The entry of a number, added where it is missing, and what had to go for it."""
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
    """Note that a call of the function is pending on a device, or is about to be; adds it where it had to go."""
    with _lock:
        entry, gone = _use(number, key, function)
        _numbers.setdefault(key, number)
        entry.pending_on.add(device)
    del gone


def note_plan(number: int, key: Hashable, function: RegisteredFunction, plan: object) -> None:
    """Note that the recorder records calls of the function by itself, as long as ``plan`` lives."""
    with _lock:
        entry, gone = _use(number, key, function)
        _numbers.setdefault(key, number)
        entry.plans += 1
    weakref.finalize(plan, _ended_plans.append, number).atexit = False
    del gone


def is_full() -> bool:
    """Whether the functions hold more constants than one table may; trim() then makes room."""
    return _bytes > lru_cache.ROOM


def trim(device: int, devices: int) -> None:
    """Remove functions that no graph needs, the least recently used first, until there is room.

    To be called when nothing is pending on this device, one of ``devices``. A function that comes again has its number
    again, so that the programs that call it are found.
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
    del removed  # without the lock: an entry may own anything


def _is_idle(entry: _Entry) -> bool:
    return not entry.pending_on and not entry.plans and entry.used_at < _trims


def bytes_of(nodes: Iterable[Any]) -> int:
    """The bytes of the constants of all functions that these nodes (of a GraphSpec) call."""
    numbers = {node.args[1][1] for node in nodes if node.op == OP}
    with _lock:
        return sum(_entries[number].function.bytes for number in numbers if number in _entries)


def held_bytes() -> int:
    """The bytes of the constants of all functions that are known."""
    return _bytes


def is_registered(number: int) -> bool:
    """Whether the function of that number is still there; it is then the most recently used one."""
    with _lock:
        if number not in _entries:
            return False
        _entries.move_to_end(number)
        return True


def _function(number: int) -> RegisteredFunction:
    with _lock:
        found = _entries.get(number)
    if found is None:
        raise RuntimeError(
            f"torch_xla::jax_call: function {number} has been forgotten, as more than {LIMIT} others were called since;"
            " call torch_xla.sync() more often, and the same function rather than ever new ones"
        )
    return found.function


def _jax_call_meta(inputs: Sequence[torch.Tensor], function: int, name: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in _function(function).outs]


@lower(OP)
def _jax_call(inputs: Sequence[jax.Array], function: int, name: str) -> list[jax.Array]:
    found = _function(function)
    return list(
        found.call(*inputs[: found.arity])
    )  # a call of none has an input all the same: see capture/jax_function.py


_library = torch.library.Library("torch_xla", "FRAGMENT")


def define() -> None:
    """Makes the operator known to torch; once."""
    _library.impl(
        _library.define("jax_call(Tensor[] inputs, int function, str name) -> Tensor[]"), _jax_call_meta, "Meta"
    )
