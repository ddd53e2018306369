"""Hide the frames of the engine, and of jax below it, in the traceback of an error that leaves the engine.

The user sees the own line and the error. TORCH_XLA_TRACEBACK=full keeps all frames. Costs nothing unless an error
passes.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

import jax
import jaxlib

from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.user_frames import ENGINE

F = TypeVar("F", bound=Callable[..., Any])

_JAX = tuple(os.path.dirname(os.path.abspath(str(module.__file__))) + os.sep for module in (jax, jaxlib))


def hide_engine_frames(function: F) -> F:
    """Decorate an entry point of the engine: errors leave it without the frames of the engine."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            remove_engine_frames(error)
            raise  # keeps the changed traceback, and adds no frame

    return call  # type: ignore[return-value]


def remove_engine_frames(error: BaseException) -> None:
    """Remove the frames of the engine from the tracebacks of an error, its causes and its contexts."""
    if not _hides():
        return
    seen: set[int] = set()
    pending: list[BaseException | None] = [error]
    while pending:
        found = pending.pop()
        if found is None or id(found) in seen:
            continue
        seen.add(id(found))
        found.__traceback__ = _user_entries(found.__traceback__)
        pending += [found.__cause__, found.__context__]


def _hides() -> bool:
    try:
        return bool(settings.TORCH_XLA_TRACEBACK == "short")
    except ValueError:  # this setting is the error
        return True


def _user_entries(traceback: TracebackType | None) -> TracebackType | None:
    """Return the entries of a traceback without those of the engine, and of jax where the engine called it."""
    kept: list[TracebackType] = []
    in_engine = False
    while traceback is not None:
        file = traceback.tb_frame.f_code.co_filename
        if file.startswith(ENGINE):
            in_engine = True
        elif not (in_engine and file.startswith(_JAX)):
            in_engine = False
            kept.append(traceback)
        traceback = traceback.tb_next
    for entry, following in zip(kept, [*kept[1:], None], strict=False):
        entry.tb_next = following
    return kept[0] if kept else None
