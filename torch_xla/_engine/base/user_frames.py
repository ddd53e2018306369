"""The user's line: the innermost Python frame outside torch, jax, Python's own library and this package."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import NamedTuple

import jax
import torch

_HERE = os.path.dirname(os.path.abspath(__file__))
#: The engine's folder, with a separator at the end.
ENGINE = os.path.dirname(_HERE) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_HERE)) + os.sep
#: Folders whose code is not the user's, with a separator at the end: this package, torch and jax.
_FOLDERS = (
    _PACKAGE,
    *(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, jax.__file__) if path is not None),
)
#: A context manager made from a generator runs under a frame of contextlib, which is nobody's line.
OWN = (*_FOLDERS, contextlib.__file__)
#: Python's own library, which copies and calls for others, but not what is installed inside its folder.
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_LIBRARY + folder + os.sep for folder in ("site-packages", "dist-packages"))


class Frame(NamedTuple):
    """A line of Python that was running."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class _UserFileCache(dict[str, bool]):
    """Whether a file is code of the user's, by its name: asked for every frame of every step."""

    def __missing__(self, file: str) -> bool:
        if file.startswith(_LIBRARY):
            users = file.startswith(_INSTALLED) and not file.startswith(OWN)
        else:
            users = not file.startswith(OWN) and not file.startswith("<frozen")
        if len(self) < _MOST_FILES:
            self[file] = users
        return users


_MOST_FILES = 1 << 16  # notebooks make a file of each cell
_users_files = _UserFileCache()


def is_user_file(file: str) -> bool:
    """Whether a file of that name is code of the user's."""
    return _users_files[file]


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """The first of ``frames`` (innermost first) that is the user's; None where there is none."""
    return next((frame for frame in frames if is_user_file(frame.file)), None)


def user_frame() -> FrameType | None:
    """The frame of the user's code that is running now; None where there is none (a thread of torch's own)."""
    return _users(sys._getframe(1))


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not _users_files[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def user_line_or_none() -> str | None:
    """``file.py:12`` of the user's code that runs now, or that this thread works for; None where there is none."""
    frame = user_frame()
    return getattr(_thread, "line", None) if frame is None else _line(frame)


def user_line() -> str:
    """The same for messages: a text also where there is none."""
    return user_line_or_none() or _line(None)


_thread = threading.local()  # .line: see working_for


@contextlib.contextmanager
def attribute_to_line(line: str | None) -> Iterator[None]:
    """In the block, what this thread does is done for that line of the user's, unless code of the user's runs in it."""
    before, _thread.line = getattr(_thread, "line", None), line
    try:
        yield
    finally:
        _thread.line = before


def main_thread_line() -> str:
    """``file.py:12`` where the main thread is now, for a thread that watches it."""
    return _line(_users(sys._current_frames().get(threading.main_thread().ident or 0)))


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line (called from a thread without frames of the user's, such as autograd's)"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def current_stack() -> Iterator[Frame]:
    """The frames of this thread, innermost first, without the engine's own."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(ENGINE):
            yield Frame(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
