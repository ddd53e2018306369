"""The user's line: the innermost Python frame outside torch, jax and this package."""

from __future__ import annotations

import os
import sys
import threading
from types import FrameType

import jax
import torch

_OWN = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (__file__ + "/..", torch.__file__, jax.__file__)
    if path is not None
)


def user_frame() -> FrameType | None:
    """The frame of the user's code that is running now; None where there is none (a thread of torch's own)."""
    return _users(sys._getframe(1))


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and (
        frame.f_code.co_filename.startswith(_OWN) or frame.f_code.co_filename.startswith("<frozen")
    ):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """``file.py:12`` of the user's code that is running now, for messages."""
    return _line(user_frame())


def main_line() -> str:
    """``file.py:12`` where the main thread is now, for a thread that watches it."""
    return _line(_users(sys._current_frames().get(threading.main_thread().ident or 0)))


def _line(frame: FrameType | None) -> str:
    if frame is None:
        return "an unknown line (called from a thread without Python frames, such as autograd's)"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
