"""Aliases of moved functions, which warn when they are called."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["deprecated", "mark_deprecated", "register_deprecated"]


def deprecated(module: ModuleType, new: F, old_name: str | None = None) -> F:
    """Return ``new`` under an old name of ``module``; a call emits a DeprecationWarning that names the new one."""
    old = old_name or new.__name__

    @functools.wraps(new)
    def call_new(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(
            f"{module.__name__}.{old} is deprecated: use {new.__module__}.{new.__name__}",
            DeprecationWarning,
            stacklevel=2,
        )
        return new(*args, **kwargs)

    return call_new  # type: ignore[return-value]


def register_deprecated(module: ModuleType, new: F, old_name: str | None = None) -> None:
    """Set the alias that ``deprecated`` returns in ``module``."""
    setattr(module, old_name or new.__name__, deprecated(module, new, old_name))


def mark_deprecated(module: ModuleType, new: F | None = None, extra_msg: str | None = None) -> Callable[[F], F]:
    """Decorate a function of ``module`` that has no alias; a call emits a DeprecationWarning."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def call_old(*args: Any, **kwargs: Any) -> Any:
            use = f": use {new.__module__}.{new.__name__}" if new is not None else ""
            message = f"{module.__name__}.{function.__name__} is deprecated{use}. {extra_msg or ''}".rstrip(" ")
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return function(*args, **kwargs)

        return call_old  # type: ignore[return-value]

    return decorate
