"""Caches do not keep what functions close over: they hold functions weakly, and arrays up to a number of bytes."""

from __future__ import annotations

import gc
import sys
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torch_xla
from tests.support.helpers import counts
from torch_xla._engine.base import lru_cache
from torch_xla._engine.base.lru_cache import LruCache
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.lowering.rules import jax_call
from torch_xla.core.xla_builder import call_jax
from torch_xla.experimental.assume_pure import assume_pure_torch
from torch_xla.experimental.scan import scan
from torch_xla.interop import jax_function

_SIZE = 1 << 20  # bytes of an array
_COUNT = _SIZE // 4


@pytest.fixture(autouse=True)
def _little_room(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(lru_cache, "ROOM", 2 * _SIZE, raising=False)
    yield
    program_cache.cache.clear()  # stablehlo() of other tests lowers all of them, whose functions may be gone


Closure = Callable[[Any], Any]
_STRUCT = jax.ShapeDtypeStruct((_COUNT,), np.float32)


def _times(table: np.ndarray) -> Closure:
    return lambda v: v * table


def _differentiated(closure: Closure, x: torch.Tensor, table: np.ndarray) -> torch.Tensor:
    x = x.clone().requires_grad_()
    jax_function(closure)(x).sum().backward()
    assert x.grad is not None
    return x.grad


def _scanned(closure: Closure, x: torch.Tensor, table: np.ndarray) -> torch.Tensor:
    step = lambda carry, _: (carry * torch.from_numpy(table).to("xla"), carry)
    return scan(step, x, torch.zeros(1).to("xla"))[0]  # type: ignore[no-any-return]


_APIS: dict[str, Callable[[Closure, torch.Tensor, np.ndarray], torch.Tensor]] = {
    "closures": lambda closure, x, table: call_jax(closure, (x,)),
    "arguments": lambda closure, x, table: call_jax(lambda v, t: v * t, (x, table)),
    "one function": lambda closure, x, table: call_jax(jnp.multiply, (x, table)),
    "gradients": _differentiated,
    "torch functions": lambda closure, x, table: assume_pure_torch(lambda v: v * torch.from_numpy(table).to("xla"))(x),
    "loops": _scanned,
}


@pytest.mark.parametrize("api", _APIS)
def test_a_loop_of_new_functions_over_large_arrays_keeps_few_of_them(api: str) -> None:
    x = torch.ones(_COUNT).to("xla")
    closures: list[weakref.ref[Closure]] = []

    def step(number: int) -> None:
        table = np.full(_COUNT, number, np.float32)
        closure = _times(table)
        closures.append(weakref.ref(closure))
        result = _APIS[api](closure, x, table)
        torch_xla.sync()
        assert float(result.detach()[0]) == number

    step(-1)
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(12):
            step(number)
        gc.collect()
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    torch_xla.sync()
    assert [ref() for ref in closures] == [None] * len(closures)
    # Twice the room of the table of functions and of two others; 12 steps made 12 tables and their copies.
    assert grown < 8 * _SIZE
    assert program_cache.cache.bytes <= 2 * _SIZE
    assert jax_call.held_bytes() <= 4 * _SIZE


def test_what_a_pending_graph_calls_is_kept() -> None:
    x, other = torch.ones(_COUNT).to("xla"), torch.ones(3).to("xla")
    results = []
    for number in range(8):
        results.append(call_jax(_times(np.full(_COUNT, number, np.float32)), (x,)))
        assert float((other + number)[0]) == 1 + number  # runs something else
    assert jax_call.held_bytes() >= 8 * _SIZE
    assert [float(result[0]) for result in results] == list(range(8))
    torch_xla.sync()
    call_jax(_times(np.ones(_COUNT, np.float32)), (x,))
    torch_xla.sync()
    torch_xla.sync()
    assert jax_call.held_bytes() <= 4 * _SIZE


def test_functions_that_come_again_keep_their_programs() -> None:
    x = torch.ones(_COUNT).to("xla")
    functions = [_times(np.full(_COUNT, number, np.float32)) for number in range(2)]

    def step() -> None:
        for number, function in enumerate(functions):
            assert float(call_jax(function, (x,))[0]) == number

    step()
    with counts() as moved:
        for _ in range(3):
            step()
            # Something large in between, for which the others have to go.
            jax_function(_times(np.full(_COUNT, 7, np.float32)))(x)
            torch_xla.sync()
    assert jax_call.forgotten == 0
    assert moved["UncachedSyncTensors"] <= 2 * 3 + 1


def test_methods_and_equal_objects_are_traced_once() -> None:
    class Scale:
        def __init__(self, factor: float) -> None:
            self.factor = factor

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Scale) and other.factor == self.factor

        def __hash__(self) -> int:
            return hash(self.factor)

        def __call__(self, v: jax.Array) -> jax.Array:
            traced.append(self.factor)
            return v * self.factor

        def scaled(self, v: jax.Array) -> jax.Array:
            return self(v)

    x, traced, kept = torch.ones(3).to("xla"), list[float](), Scale(2.0)
    for _ in range(2):
        call_jax(Scale(2.0), (x,))
        call_jax(kept.scaled, (x,))
    assert traced == [2.0, 2.0]
    # Equal objects may change apart from each other: their methods are not one function.
    other = Scale(2.0)
    call_jax(other.scaled, (x,))
    assert traced == [2.0, 2.0, 2.0]


def test_a_table_counts_the_bytes_of_its_items() -> None:
    evicted: list[None] = []
    table = LruCache[bytes](lambda: evicted.append(None), limit=lambda: 9, weigh=len)
    for key in range(4):
        table.put(key, bytes(_SIZE))
    assert (len(table), table.bytes, len(evicted)) == (2, 2 * _SIZE, 2)
    table.put(3, b"")
    assert (len(table), table.bytes) == (2, _SIZE)
    table.put(9, bytes(9 * _SIZE))  # kept, as the last one
    assert (table.values(), table.bytes) == ([bytes(9 * _SIZE)], 9 * _SIZE)
    table.remove(lambda key: key == 9)
    assert (len(table), table.bytes) == (0, 0)


def test_a_key_whose_hash_changes_leaves_the_cache_intact() -> None:
    class Config:
        def __init__(self, size: int) -> None:
            self.size = size

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Config) and other.size == self.size

        def __hash__(self) -> int:
            return hash(self.size)

    cache: LruCache[int] = LruCache(limit=lambda: 8)
    for i in range(100):
        key = Config(i)
        cache.put(key, i)
        key.size += 1000
        cache.remove(lambda key: False)
    assert cache.values() == list(range(92, 100))
    cache.clear()
    assert len(cache) == 0


def test_an_interrupt_of_a_lookup_loses_no_item() -> None:
    """A lost item is a program that is compiled again at the next step, and that may be interrupted again."""

    class InterruptError(Exception):
        pass

    cache: LruCache[int] = LruCache(limit=lambda: 8)
    cache.put("key", 1)
    interrupted = 0
    for last in range(20):
        events = iter(range(last))

        def interrupt(frame: Any, event: str, what: Any, events: Iterator[int] = events) -> None:
            # No interrupt comes between a `with` block and the release of its lock, but a profiler's event does.
            is_release = event == "c_call" and what.__name__ == "__exit__"
            if not is_release and next(events, None) is None:
                sys.setprofile(None)
                raise InterruptError

        with suppress(InterruptError):
            sys.setprofile(interrupt)
            cache.get("key")
            sys.setprofile(None)  # is an event as well
            interrupted -= 1
        interrupted += 1
        assert cache.get("key") == 1, last
    assert 5 < interrupted < 20
