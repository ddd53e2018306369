"""Run an action when a module is imported, now or later, so that torch_xla need not import slow modules itself."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_waiting: dict[str, list[Callable[[ModuleType], None]]] = {}


def on_import(name: str, action: Callable[[ModuleType], None]) -> None:
    """Call ``action(module)`` now if the module is loaded, else after its code has run, before its importer goes on."""
    if name in sys.modules:
        action(sys.modules[name])
        return
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    _waiting.setdefault(name, []).append(action)


class _Finder(importlib.abc.MetaPathFinder):
    """Delegate to the other finders, and wrap the loader to run the action afterwards."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, _waiting.pop(name))
        return spec


class _Loader(importlib.abc.Loader):
    def __init__(self, inner: importlib.abc.Loader, actions: list[Callable[[ModuleType], None]]) -> None:
        self.inner, self.actions = inner, actions

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        for action in self.actions:
            action(module)
