"""How a compiled program is started without Python in between, and arrays of 64 bits are made in C++."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from torch_xla._engine.base.compat.private import Private

_APART = "programs are started by jax, on a new thread for each launch, which is several times slower"
_CALL = Private(
    "jax._src.interpreters.pxla",
    "ExecuteReplicated",
    "a step starts its program and takes the results in one call of C++, which nothing interrupts",
    _APART,
)
_EXECUTE = Private("jaxlib._jax", "LoadedExecutable.execute_sharded", "as the one before", _APART)
_RESULTS = Private("jaxlib._jax", "ExecuteResults.consume_with_handlers", "as the one before", _APART)
_TOKEN = Private(
    "jaxlib._jax",
    "ExecuteResults.consume_token",
    "ExecuteTime counts until a program has ended",
    "ExecuteTime counts until the first result is there, or another program has taken it over",
)
_PUT = Private("jaxlib.xla_client", "batched_device_put", "the numbers of a step travel without Python", _APART)
_SWITCH = Private(
    "jax",
    "enable_x64.swap_local",
    "64-bit types are on while a program is started, and off again whatever interrupts that",
    "an interrupt at the wrong moment may leave 64-bit types of jax switched on",
)
#: What a call of a program must not have to be started so.
_EFFECTS = ("ordered_effects", "has_unordered_effects", "has_host_callbacks", "mut")


def executable(compiled: jax.stages.Compiled) -> tuple[Callable[[list[jax.Array]], Any], Any] | tuple[None, None]:
    """(what runs the program on a list of arrays, what makes arrays of its results); (None, None) without.

    There is none for a program that calls back into Python, or keeps an order of effects.
    """
    call, kind = getattr(getattr(compiled, "_executable", None), "unsafe_call", None), _CALL.find()
    if kind is None or not isinstance(call, kind) or any(getattr(call, name, True) for name in _EFFECTS):
        return None, None
    handlers = getattr(getattr(call, "out_handler", None), "handlers", None)
    takes_all = len(getattr(call, "kept_var_idx", ())) == len(compiled.in_avals[0])
    if handlers is None or not takes_all or _EXECUTE.find() is None or _RESULTS.find() is None:
        return None, None
    program: Any = compiled.runtime_executable()
    return program.execute_sharded, list(handlers)


def has_tokens() -> bool:
    """Whether what ``executable`` gives can say when the program has ended."""
    return _TOKEN.find() is not None


def calls_python(compiled: jax.stages.Compiled) -> bool:
    """Whether the program calls functions of Python while it runs, as jax.pure_callback does."""
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    return any(bool(getattr(call, name, False)) for name in _EFFECTS)


def put_array() -> Callable[..., jax.Array] | None:
    """``f(aval, sharding, host arrays, devices) -> array``, which is C++; None without."""
    found: Callable[..., jax.Array] | None = _PUT.find()
    return found


@functools.cache
def x64_switch() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | tuple[None, None]:
    """(new value -> old one, old value -> None) of this thread's switch for 64-bit types; (None, None) without."""
    state: Any = jax.enable_x64
    if _SWITCH.find() is None or getattr(state, "_update_thread_local_hook", True) is not None:
        return None, None
    return state.swap_local, state.set_local
