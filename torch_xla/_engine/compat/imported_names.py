"""Replace functions of torch in modules that imported them by name before torch_xla did.

from torch import manual_seed   # binds the original
import torch_xla                # replaces torch.manual_seed, and this module's name as well
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

#: Pairs of an original function and its replacement, which modules that are loaded already may still refer to.
_pending: list[tuple[Any, Any]] = []


def add_replacement(original: Callable[..., Any], replacement: Callable[..., Any]) -> None:
    """Register a replacement for the next call of ``replace_imported_names``."""
    _pending.append((original, replacement))


def replace_imported_names() -> None:
    """Bind the names of all loaded modules that refer to a replaced function to its replacement. Takes milliseconds."""
    replacements = {id(original): replacement for original, replacement in _pending}
    modules: list[object] = list(sys.modules.values())  # some libraries put other objects there
    for module in modules:
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in replacements:
                setattr(module, name, replacements[id(value)])
    _pending.clear()
