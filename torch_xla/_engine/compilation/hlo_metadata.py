"""XLA_HLO_DEBUG: attaches the source location of each node to its HLO instructions as metadata.

An instruction gets ``op_name="jit(graph)/Net/fc/aten::addmm/dot_general"``, and the user's file and line. jax takes the
line from the Python stack of the trace, innermost frame first, and skips its own files. So a rule is called through a
function whose code object claims the user's file and line, and this package and torch are skipped as jax's files are.
Functions that jax traces once and then reuses (``jnp.where``) would keep the location of their first use: a user
context, part of the key of jax's caches, separates them.

Uses ``jax.extend.source_info_util.register_exclusion`` and ``jax.make_user_context`` (checked on jax 0.10.2).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
from jax.extend import source_info_util

from torch_xla._engine.base.user_frames import OWN, Frame
from torch_xla._engine.recorder.source_info import Origin

T = TypeVar("T")

_place: Any = None  # jax's user context, made by the first enable() and kept
_is_enabled = False


def enable() -> None:
    """Attach metadata in all later compilations. Call before jax traces on another thread."""
    global _place, _is_enabled
    if _place is None:
        for folder in OWN:
            source_info_util.register_exclusion(folder)
        _place = jax.make_user_context(None)
    _is_enabled = True


@contextmanager
def record_locations() -> Iterator[None]:
    """Attach metadata in the compilations of the block, those of other threads included."""
    global _is_enabled
    before = _is_enabled
    enable()
    try:
        yield
    finally:
        _is_enabled = before


def is_enabled() -> bool:
    """Return whether compilations attach metadata."""
    return _is_enabled


@functools.lru_cache(maxsize=4096)
def _caller(frame: Frame) -> Callable[[Callable[[], Any]], Any]:
    """Return a function that calls its argument and whose code object has the frame's file, line and name."""
    source = "\n" * (frame.line - 1) + "def caller(call): return call()"
    namespace: dict[str, Any] = {}
    exec(compile(source, frame.file, "exec"), namespace)
    caller: Any = namespace["caller"]
    caller.__code__ = caller.__code__.replace(co_name=frame.function, co_qualname=frame.function)
    return caller  # type: ignore[no-any-return]


def with_metadata(op: str, origin: Origin | None, call: Callable[[], T]) -> T:
    """Return ``call()``. If metadata is enabled, the HLO that it traces has the op's name and source location."""
    if not _is_enabled:
        return call()
    name = op.split(".")[0]
    path = f"{origin.scope}/{name}" if origin is not None and origin.scope else name
    frame = None if origin is None else origin.frame
    with jax.named_scope(path), _place((path, frame)):
        return call() if frame is None else _caller(frame)(call)


_TABLES = re.compile(r"^(FileNames|FunctionNames|FileLocations|StackFrames)\n((?:\d+ .*\n)*)\n*", re.MULTILINE)


def inline_sources(hlo: str) -> str:
    """Return HLO text with ``source_file=... source_line=...`` at each instruction instead of stack frame ids."""
    tables: dict[str, dict[str, str]] = {
        kind: dict(row.split(" ", 1) for row in rows.splitlines()) for kind, rows in _TABLES.findall(hlo)
    }

    def source(match: re.Match[str]) -> str:
        frame = tables["StackFrames"][match[1]]
        location = tables["FileLocations"][_field("file_location_id", frame)]
        file = tables["FileNames"][_field("file_name_id", location)]
        return f"source_file={file} source_line={_field('line', location)}"

    return re.sub(r"stack_frame_id=(\d+)", source, _TABLES.sub("", hlo))


def _field(name: str, row: str) -> str:
    found = re.search(rf"\b{name}=(\d+)", row)
    assert found is not None, f"no {name} in {row}"
    return found[1]
