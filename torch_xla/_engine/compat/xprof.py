"""Capture profiles of other processes with the package xprof."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_XPROF = PrivateApi(
    "xprof.convert",
    "_pywrap_profiler_plugin.trace",
    "remote profiles, as jax.collect_profile captures them, without its prints and browser",
    "xp.trace raises that the package is missing",
    optional=True,
)


def capture_remote_trace(address: str, logdir: str, duration_ms: int, attempts: int, levels: dict[str, Any]) -> None:
    """Capture a profile of the process at the address into ``logdir``. Raises ImportError if xprof is not installed."""
    take = _XPROF.resolve_or_none()
    if take is None:
        raise ImportError(f"{_XPROF.path} is missing")
    take(address, logdir, "", True, duration_ms, attempts, levels)
