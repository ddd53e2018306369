"""Calls of jax functions as an operator of torch: ``torch_xla::jax_call``, one node of a graph for each call.

A node names its function by number. Numbers are given out for good, one for each different program: two functions that
lower to the same StableHLO and call the same Python functions have one number, so that a graph that calls a function
made anew at each step keeps its key.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import jax
import torch

from torch_xla._engine.base.locks import process_lock
from torch_xla._engine.base.lru import LruCache
from torch_xla._engine.lowering.registry import Promise, lower

#: So many functions are known at once; a pending call of one that had to go cannot be built any more.
LIMIT = 8192


@dataclass(frozen=True, slots=True)
class Function:
    """A function over ``arity`` arrays of fixed shapes and dtypes: what programs call it, and what it gives."""

    name: str
    arity: int
    call: Callable[..., Sequence[jax.Array]]
    outs: tuple[Promise, ...]


_forgotten = itertools.count()
#: How many functions had to go so far.
forgotten = 0


def _count_forgotten() -> None:
    global forgotten
    forgotten = next(_forgotten) + 1


_functions: LruCache[Function] = LruCache(_count_forgotten, limit=lambda: LIMIT)
_numbers: LruCache[int] = LruCache(limit=lambda: LIMIT)  # by what identifies a function
_lock = process_lock()
_next = itertools.count(1)


def add(key: Hashable, function: Function) -> int:
    """The number of a function; ``key`` stands for its program, name, results and callbacks."""
    with _lock:
        number = _numbers.get(key)
        if number is None or _functions.get(number) is None:
            number = next(_next)
            _functions.put(number, function)
            _numbers.put(key, number)
        return number


def is_known(number: int) -> bool:
    """Whether the function of that number is still there; it is then the most recently used one."""
    return _functions.get(number) is not None


def _function(number: int) -> Function:
    found = _functions.get(number)
    if found is None:
        raise RuntimeError(
            f"torch_xla::jax_call: function {number} has been forgotten, as more than {LIMIT} others were called since;"
            " call torch_xla.sync() more often, and the same function rather than ever new ones"
        )
    return found


def _shapes(inputs: Sequence[torch.Tensor], function: int, name: str) -> list[torch.Tensor]:
    return [torch.empty(shape, dtype=dtype, device="meta") for shape, dtype in _function(function).outs]


@lower("torch_xla::jax_call")
def _jax_call(inputs: Sequence[jax.Array], function: int, name: str) -> list[jax.Array]:
    found = _function(function)
    return list(found.call(*inputs[: found.arity]))  # a call of none has an input all the same: see interop/calls.py


_library = torch.library.Library("torch_xla", "FRAGMENT")


def define() -> None:
    """Makes the operator known to torch; once."""
    _library.impl(_library.define("jax_call(Tensor[] inputs, int function, str name) -> Tensor[]"), _shapes, "Meta")
