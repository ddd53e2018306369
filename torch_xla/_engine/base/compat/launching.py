"""How a compiled program is started without Python in between, and arrays of 64 bits are made in C++."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax


def executable(compiled: jax.stages.Compiled) -> tuple[Callable[[list[jax.Array]], Any], Any] | tuple[None, None]:
    """(what runs the program on a list of arrays, what makes arrays of its results); (None, None) without.

    There is none for a program that calls back into Python, or keeps an order of effects.
    """
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    effects = ("ordered_effects", "has_unordered_effects", "has_host_callbacks", "mut")
    if call is None or any(getattr(call, name, True) for name in effects):
        return None, None
    handlers = getattr(getattr(call, "out_handler", None), "handlers", None)
    execute = getattr(compiled.runtime_executable(), "execute_sharded", None)
    leaves_none_out = len(getattr(call, "kept_var_idx", ())) == len(compiled.in_avals[0])
    return (execute, list(handlers)) if execute and handlers is not None and leaves_none_out else (None, None)


def put_array() -> Callable[..., jax.Array] | None:
    """``f(aval, sharding, host arrays, devices) -> array``, which is C++; None without."""
    from jax._src.lib import xla_client

    return getattr(xla_client, "batched_device_put", None)


@functools.cache
def x64_switch() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | tuple[None, None]:
    """(new value -> old one, old value -> None) of this thread's switch for 64-bit types; (None, None) without."""
    state: Any = jax.enable_x64
    if getattr(state, "_update_thread_local_hook", True) is not None or not hasattr(state, "swap_local"):
        return None, None
    return state.swap_local, state.set_local
