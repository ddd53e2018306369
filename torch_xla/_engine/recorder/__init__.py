"""The recorder (C++), loaded once: built on the first import for this torch, then registered with the dispatcher."""

from __future__ import annotations

from types import ModuleType

_module: ModuleType | None = None


def module() -> ModuleType:
    """The recorder's bindings. Raises RecorderBuildError where it cannot be built."""
    global _module
    if _module is None:
        from torch_xla._engine.recorder import build

        _module = build.load_recorder()
    return _module
