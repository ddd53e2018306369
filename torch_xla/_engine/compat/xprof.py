"""Profiles of other processes, through the package xprof."""

from __future__ import annotations

from typing import Any

from torch_xla._engine.compat.private_api import PrivateApi

_XPROF = PrivateApi(
    "xprof.convert",
    "_pywrap_profiler_plugin.trace",
    "profiles of another process, as jax.collect_profile takes them, without its prints and its browser",
    "xp.trace says that the package is missing",
    optional=True,
)


def capture_remote_trace(address: str, logdir: str, duration_ms: int, attempts: int, levels: dict[str, Any]) -> None:
    """Has the process at the address profile itself, into ``logdir``. ImportError where xprof is not installed."""
    take = _XPROF.resolve_or_none()
    if take is None:
        raise ImportError(f"{_XPROF.path} is not there")
    take(address, logdir, "", True, duration_ms, attempts, levels)
