"""Find the user's line: the innermost Python frame outside torch, jax, the standard library and this package."""

from __future__ import annotations

import contextlib
import os
import re
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
#: Folders of library code (this package, torch and jax), with a separator at the end.
_FOLDERS = (
    _PACKAGE,
    *(os.path.dirname(os.path.abspath(path)) + os.sep for path in (torch.__file__, jax.__file__) if path is not None),
)
#: Generator-based context managers run under a frame of contextlib, which is not user code either.
OWN = (*_FOLDERS, contextlib.__file__)
#: The standard library, which calls on behalf of others, without the packages installed inside its folder.
_LIBRARY = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_INSTALLED = tuple(_LIBRARY + folder + os.sep for folder in ("site-packages", "dist-packages"))


class Frame(NamedTuple):
    """A line of Python in a stack trace."""

    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


class _UserFileCache(dict[str, bool]):
    """Cache of whether a file contains user code, by its name: looked up for every frame of every step."""

    def __missing__(self, file: str) -> bool:
        if file.startswith(_LIBRARY):
            users = file.startswith(_INSTALLED) and not file.startswith(OWN)
        else:
            users = not file.startswith(OWN) and not file.startswith("<frozen")
        if len(self) < _MOST_FILES:
            self[file] = users
        return users


_MOST_FILES = 1 << 16  # notebooks create a file for each cell
_users_files = _UserFileCache()


def is_user_file(file: str) -> bool:
    """Whether a file contains user code."""
    return _users_files[file]


def installed_library(line: str) -> str | None:
    """Return the installed package that a line ``file.py:12`` belongs to; None for a file of the user."""
    found = _PACKAGE_FOLDER.search(line)
    return found and found[1].removesuffix(".py")


#: Editable installations are the user's own files.
_PACKAGE_FOLDER = re.compile(r"[/\\](?:site|dist)-packages[/\\]([^/\\:]+)")


def innermost_user_frame(frames: Iterable[Frame]) -> Frame | None:
    """Return the first user frame of ``frames`` (innermost first); None if there is none."""
    return next((frame for frame in frames if is_user_file(frame.file)), None)


def user_frame() -> FrameType | None:
    """Return the innermost user frame of this thread; None if there is none (a thread of torch)."""
    return _users(sys._getframe(1))


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not _users_files[frame.f_code.co_filename]:
        frame = frame.f_back
    return frame


def user_line_or_none() -> str | None:
    """Return ``file.py:12`` of the user code on this thread, or the line it is attributed to; None if there is none."""
    frame = user_frame()
    return getattr(_thread, "line", None) if frame is None else _line(frame)


def user_line() -> str:
    """Return the user's line for messages; a placeholder text if there is none."""
    return user_line_or_none() or _line(None)


_thread = threading.local()  # .line: see attribute_to_line


@contextlib.contextmanager
def attribute_to_line(line: str | None) -> Iterator[None]:
    """Attribute this thread's work in the block to a line of user code, unless user code runs in the block itself."""
    before, _thread.line = getattr(_thread, "line", None), line
    try:
        yield
    finally:
        _thread.line = before


def main_thread_line() -> str:
    """Return ``file.py:12`` of the main thread, for a thread that monitors it."""
    return _line(_users(sys._current_frames().get(threading.main_thread().ident or 0)))


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line (called from a thread without user frames, such as autograd's)"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def current_stack() -> Iterator[Frame]:
    """Yield the frames of this thread, innermost first, without those of the engine."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(ENGINE):
            yield Frame(frame.f_code.co_name, frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
