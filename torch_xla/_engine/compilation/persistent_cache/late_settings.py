"""Warn of variables of the cache, XLA's flags and timers that a script sets too late."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

from torch_xla._engine.base import xla_flags
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compat import contraction_kernel

#: The settings of the cache folder.
_FOLDER_SETTINGS = ("XLA_PERSISTENT_CACHE_PATH", "XLA_PERSISTENT_CACHE_READ_ONLY", "TORCH_XLA_PERSISTENT_CACHE_MAX_GB")
_warned: set[str] = set()  # the variables that a warning has named


def warn_of_late_settings(folder: Path | None) -> None:
    """Warn, once for each variable, of those that were set too late. ``folder``: the cache folder, None without one."""
    _warn_of_late_flags()
    contraction_kernel.warn_of_late_timer()
    late = [name for name in settings.changed_after_read(_FOLDER_SETTINGS) if name not in _warned]
    named = os.environ.get("XLA_PERSISTENT_CACHE_PATH")
    if folder is not None and named and Path(named).expanduser().absolute() == folder:  # by initialize(), too
        late = [name for name in late if name != "XLA_PERSISTENT_CACHE_PATH"]
    _warned.update(late)
    for name in late:
        state = "is disabled" if folder is None else f"uses {folder}"
        warnings.warn(
            f"torch_xla: {name} was set after the first use of a device and has no effect: the persistent compilation "
            f"cache {state}. Set it earlier, or call torch_xla.runtime.initialize_cache(path).",
            UserWarning,
            stacklevel=2,
        )


def _warn_of_late_flags() -> None:
    late = [name for name in xla_flags.read().changed_late() if name not in _warned]
    _warned.update(late)
    for name in late:
        warnings.warn(
            f"torch_xla: {name} was changed after XLA had read it and has no effect: XLA parses its flags once per "
            "process. Set it before the first use of a device.",
            UserWarning,
            stacklevel=2,
        )
