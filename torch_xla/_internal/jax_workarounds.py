"""Functions that scripts call before they use jax. torch_xla runs on jax, so no preparation is needed.

Upstream and jax are two clients of one device: the first takes it, and variables of the environment must not reach the
other.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from torch_xla.experimental.custom_kernel import jax_import_guard

F = TypeVar("F", bound=Callable[..., Any])


@contextlib.contextmanager
def jax_env_context() -> Iterator[None]:
    """Import jax in the block. The environment stays as it is: this package and jax share the runtime."""
    yield


def requires_jax(func: F) -> F:
    """Return the function: jax is always installed."""
    return func


def maybe_get_jax() -> ModuleType:
    """Return the module ``jax``."""
    return importlib.import_module("jax")


def maybe_get_torchax() -> ModuleType | None:
    """Return the module ``torchax``; None if it is not installed."""
    try:
        return importlib.import_module("torchax")
    except ImportError:
        return None


__all__ = ["jax_env_context", "jax_import_guard", "maybe_get_jax", "maybe_get_torchax", "requires_jax"]
