"""Launch compiled programs and create 64-bit arrays through jaxlib's C++ interface."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

from torch_xla._engine.compat.private_api import PrivateApi

_SLOW = "jax launches programs, on a new thread for each launch, which is several times slower"
_CALL = PrivateApi(
    "jax._src.interpreters.pxla",
    "ExecuteReplicated",
    "launching a program and taking its results in one uninterruptible C++ call",
    _SLOW,
)
_EXECUTE = PrivateApi("jaxlib._jax", "LoadedExecutable.execute_sharded", _CALL.purpose, _SLOW)
_RESULTS = PrivateApi("jaxlib._jax", "ExecuteResults.consume_with_handlers", _CALL.purpose, _SLOW)
_TOKEN = PrivateApi(
    "jaxlib._jax",
    "ExecuteResults.consume_token",
    "completion events of programs, for ExecuteTime",
    "ExecuteTime ends when the first result is ready, or was donated to another program",
)
_PUT = PrivateApi(
    "jaxlib.xla_client",
    "batched_device_put",
    "uploading host arrays, and the scalars of a step, without jax's Python code",
    f"each upload takes 50 us longer; {_SLOW}",
)
_SWITCH = PrivateApi(
    "jax",
    "enable_x64.swap_local",
    "enabling 64-bit types during a launch, safe against interrupts",
    "an interrupt may leave jax's 64-bit types enabled",
)
_GUARD = PrivateApi(
    "jaxlib._jax.guard_lib",
    "thread_local_state",
    "independence of transfers from the user's jax_transfer_guard",
    "jax_transfer_guard='disallow' makes steps raise",
)
_ALLOW = PrivateApi("jaxlib._jax.guard_lib", "TransferGuardLevel.ALLOW", _GUARD.purpose, _GUARD.without)
#: jax options that would change how jax traces or calls the engine's functions, with the values that are used instead.
_VALUES: dict[str, Any] = {
    "disable_jit": False,  # loops would run in Python, on tracers
    "no_tracing": False,
    "no_execution": False,
    "debug_nans": False,  # NaN is a valid value in a torch program
    "debug_infs": False,
    "numpy_rank_promotion": "allow",
    "numpy_dtype_promotion": "standard",
    "error_checking_behavior_nan": "ignore",  # the checks add results to a program
    "error_checking_behavior_divide": "ignore",
    "error_checking_behavior_oob": "ignore",
}
_PROMOTION = ("numpy_rank_promotion", "numpy_dtype_promotion")
_OPTIONS = {
    name: (
        PrivateApi("jax._src.config", name, f"independence of programs from jax_{name}", "the option may break steps"),
        value,
    )
    for name, value in _VALUES.items()
}
#: Properties of a program that rule out a raw launch.
_EFFECTS = ("ordered_effects", "has_unordered_effects", "has_host_callbacks", "mut")


def raw_execute(compiled: jax.stages.Compiled) -> tuple[Callable[[list[jax.Array]], Any], Any] | tuple[None, None]:
    """Return (the C++ function that runs a program on a list of arrays, the handler of its results), or (None, None).

    (None, None) for programs with Python callbacks or ordered effects.
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
    """Whether the results of ``executable`` have an event for the completion of the program."""
    return _TOKEN.resolve_or_none() is not None


def has_python_callbacks(compiled: jax.stages.Compiled) -> bool:
    """Whether the program calls Python functions while it runs, as jax.pure_callback does."""
    call = getattr(getattr(compiled, "_executable", None), "unsafe_call", None)
    return any(bool(getattr(call, name, False)) for name in _EFFECTS)


@functools.cache
def raw_device_put() -> Callable[..., jax.Array] | None:
    """Return the C++ function ``f(aval, sharding, host arrays, devices) -> array``; None if jaxlib lacks it."""
    found: Callable[..., jax.Array] | None = _PUT.resolve_or_none()
    return found


def put_host_array(host: np.ndarray, device: jax.Device) -> jax.Array:
    """Upload a host array as jax.device_put does; requires ``enable_x64``. The array may share the host's memory."""
    put = raw_device_put()
    if put is None:
        buffer: jax.Array = jax.device_put(host, device, may_alias=False)
        return buffer
    return put(_aval(host.shape, host.dtype), _on_device(device), [host], [device])


@functools.lru_cache(maxsize=4096)
def _aval(shape: tuple[int, ...], dtype: np.dtype[Any]) -> jax.core.ShapedArray:
    return jax.core.ShapedArray(shape, dtype)


@functools.cache
def _on_device(device: jax.Device) -> SingleDeviceSharding:
    return SingleDeviceSharding(device)


class Option(NamedTuple):
    """A thread-local jax option: ``swap(value)`` returns the previous value, which ``restore`` takes."""

    swap: Callable[[Any], Any]
    restore: Callable[[Any], Any]
    value: Any


@functools.cache
def x64_setter() -> tuple[Callable[[Any], Any], Callable[[Any], Any]] | tuple[None, None]:
    """Return (new value -> old value, old value -> None) of this thread's 64-bit option, or (None, None)."""
    state: Any = jax.enable_x64
    if _SWITCH.resolve_or_none() is None or getattr(state, "_update_thread_local_hook", True) is not None:
        return None, None
    return state.swap_local, state.set_local


@functools.cache
def wide_options() -> list[Option]:
    """Return the only option that ``raw_device_put`` depends on, 64-bit types. Requires x64_setter."""
    swap, restore = x64_setter()
    assert swap is not None
    assert restore is not None
    return [Option(swap, restore, True)]


@functools.cache
def isolating_options(keep_promotion: bool = False) -> list[Option]:
    """Return the jax options to set while the engine traces and lowers, with their values. Requires x64_setter.

    With ``keep_promotion`` the user's dtype promotion stays: a user's function is traced.
    """
    found = list(wide_options())
    for name, (entry, value) in _OPTIONS.items():
        state = None if keep_promotion and name in _PROMOTION else entry.resolve_or_none()
        if state is not None and hasattr(state, "swap_local"):
            found.append(Option(state.swap_local, state.set_local, value))
    return found


@functools.cache
def transfer_guard() -> tuple[Callable[[], Any], Any] | tuple[None, None]:
    """Return (a getter of this thread's transfer guard levels, the level that allows transfers), or (None, None)."""
    state, level = _GUARD.resolve_or_none(), _ALLOW.resolve_or_none()
    return (None, None) if state is None or level is None else (state, level)
