"""How a compiled program is started without Python in between, and arrays of 64 bits are made in C++."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from torch_xla._engine.compat.private_api import PrivateApi

_APART = "programs are started by jax, on a new thread for each launch, which is several times slower"
_CALL = PrivateApi(
    "jax._src.interpreters.pxla",
    "ExecuteReplicated",
    "a step starts its program and takes the results in one call of C++, which nothing interrupts",
    _APART,
)
_EXECUTE = PrivateApi("jaxlib._jax", "LoadedExecutable.execute_sharded", "as the one before", _APART)
_RESULTS = PrivateApi("jaxlib._jax", "ExecuteResults.consume_with_handlers", "as the one before", _APART)
_TOKEN = PrivateApi(
    "jaxlib._jax",
    "ExecuteResults.consume_token",
    "ExecuteTime counts until a program has ended",
    "ExecuteTime counts until the first result is there, or another program has taken it over",
)
_PUT = PrivateApi("jaxlib.xla_client", "batched_device_put", "the numbers of a step travel without Python", _APART)
_SWITCH = PrivateApi(
    "jax",
    "enable_x64.swap_local",
    "64-bit types are on while a program is started, and off again whatever interrupts that",
    "an interrupt at the wrong moment may leave 64-bit types of jax switched on",
)
_GUARD = PrivateApi(
    "jaxlib._jax.guard_lib",
    "thread_local_state",
    "our transfers are independent of the user's jax_transfer_guard",
    "jax_transfer_guard='disallow' makes steps raise",
)
_ALLOW = PrivateApi("jaxlib._jax.guard_lib", "TransferGuardLevel.ALLOW", "as the one before", "as the one before")
#: Options under which jax traces or calls our functions in another way, or not at all.
_VALUES: dict[str, Any] = {
    "disable_jit": False,  # loops would run in Python, on tracers
    "no_tracing": False,
    "no_execution": False,
    "debug_nans": False,  # NaN is a value of the user's torch program
    "debug_infs": False,
    "numpy_rank_promotion": "allow",
    "numpy_dtype_promotion": "standard",
    "error_checking_behavior_nan": "ignore",  # the checks add results to a program
    "error_checking_behavior_divide": "ignore",
    "error_checking_behavior_oob": "ignore",
}
_PROMOTION = ("numpy_rank_promotion", "numpy_dtype_promotion")
_OPTIONS = {
    name: (PrivateApi("jax._src.config", name, f"programs are independent of jax_{name}", "it may break steps"), value)
    for name, value in _VALUES.items()
}
#: What a call of a program must not have to be started so.
_EFFECTS = ("ordered_effects", "has_unordered_effects", "has_host_callbacks", "mut")


def raw_execute(compiled: jax.stages.Compiled) -> tuple[Callable[[list[jax.Array]], Any], Any] | tuple[None, None]:
    """(what runs the program on a list of arrays, what makes arrays of its results); (None, None) without.

    There is none for a program that calls back into Python, or keeps an order of effects.
    """
    call, kind = getattr(getattr(compiled, "_executable", None), "unsafe_call", None), _CALL.resolve_or_none()
    if kind is None or not isinstance(call, kind) or any(getattr(call, name, True) for name in _EFFECTS):
        return None, None
    handlers = getattr(getattr(call, "out_handler", None), "handlers", None)
    takes_all = len(getattr(call, "kept_var_idx", ())) == len(compiled.in_avals[0])
    if handlers is None or not takes_all or _EXECUTE.resolve_or_none() is None or _RESULTS.resolve_or_none() is None:
        return None, None
    program: Any = compiled.runtime_executable()
    return program.execute_sharded, list(handlers)


def supports_completion_tokens() -> bool:
    """Whether what ``executable`` gives can say when the program has ended."""
    return _TOKEN.resolve_or_none() is not None


def has_python_callbacks(compiled: jax.stages.Compiled) -> bool:
    """Whether the program calls functions of Python while it runs, as jax.pure_callback does."""
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    return any(bool(getattr(call, name, False)) for name in _EFFECTS)


def raw_device_put() -> Callable[..., jax.Array] | None:
    """``f(aval, sharding, host arrays, devices) -> array``, which is C++; None without."""
    found: Callable[..., jax.Array] | None = _PUT.resolve_or_none()
    return found


class Option(NamedTuple):
    """A switch of jax in this thread: ``swap(value)`` returns the value before, which ``restore`` takes."""

    swap: Callable[[Any], Any]
    restore: Callable[[Any], Any]
    value: Any


@functools.cache
def x64_setter() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | tuple[None, None]:
    """(new value -> old one, old value -> None) of this thread's switch for 64-bit types; (None, None) without."""
    state: Any = jax.enable_x64
    if _SWITCH.resolve_or_none() is None or getattr(state, "_update_thread_local_hook", True) is not None:
        return None, None
    return state.swap_local, state.set_local


def wide_options() -> list[Option]:
    """Return the one option that ``put_array`` depends on, 64-bit types; x64_switch is there."""
    swap, restore = x64_setter()
    assert swap is not None
    assert restore is not None
    return [Option(swap, restore, True)]


@functools.cache
def isolating_options(keep_promotion: bool = False) -> list[Option]:
    """Return the options of jax to set while the engine traces and lowers, with their values; x64_switch is there.

    With ``keep_promotion`` the user's rules for promotion stay: a function of the user's is traced.
    """
    found = wide_options()
    for name, (entry, value) in _OPTIONS.items():
        state = None if keep_promotion and name in _PROMOTION else entry.resolve_or_none()
        if state is not None and hasattr(state, "swap_local"):
            found.append(Option(state.swap_local, state.set_local, value))
    return found


@functools.cache
def transfer_guard() -> tuple[Callable[[], Any], Any] | tuple[None, None]:
    """(what returns this thread's levels of jax's transfer guard, the level that allows); (None, None) without."""
    state, level = _GUARD.resolve_or_none(), _ALLOW.resolve_or_none()
    return (None, None) if state is None or level is None else (state, level)
