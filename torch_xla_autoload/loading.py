"""Import torch_xla once, at the first use of xla; hooks call this on any thread and in any state of torch."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable

#: What restores torch, in the order of installation; empty before and after the hooks are active.
_undo: list[Callable[[], None]] = []
_lock = threading.Lock()
_loader: threading.Thread | None = None
_failure: BaseException | None = None


def is_active() -> bool:
    """Whether the hooks are installed: torch_xla is not loaded yet."""
    return bool(_undo)


def on_removal(restore: Callable[[], None]) -> None:
    """Register what undoes a hook."""
    _undo.append(restore)


def remove_hooks() -> bool:
    """Undo the hooks, before torch_xla registers its own; return whether there were any."""
    were_active = is_active()
    while _undo:
        _undo.pop()()
    return were_active


def load() -> None:
    """Import torch_xla, unless it is loaded. A failure is raised again by each later call.

    The import runs on a thread of its own: the calling thread may be inside torch.compile, inference mode, a default
    device, or a dispatch mode, which would apply to all that is imported.

    Raises:
        ImportError: torch_xla cannot be imported; the message says why.
        RuntimeError: torch_xla itself uses xla while it is imported.
    """
    global _loader
    if not is_active():
        return
    if threading.current_thread() is _loader:
        raise RuntimeError("torch_xla uses xla while it is imported")
    with _lock:
        if is_active() and _failure is None:
            _loader = threading.Thread(target=_import, name="torch_xla autoload", daemon=True)
            _loader.start()
            _loader.join()
            _loader = None
    if _failure is not None:
        raise _failure


def _import() -> None:
    global _failure
    try:
        importlib.import_module("torch_xla")
        if is_active():  # imported by a command that diagnoses imports, without initializing it
            importlib.import_module("torch_xla._engine.startup").initialize()
    except BaseException as error:
        _failure = error
