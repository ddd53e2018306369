"""The user's line: the innermost Python frame outside torch, jax and this package."""

from __future__ import annotations

import contextlib
import os
import sys
from types import FrameType

import jax
import torch

_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(path)) + os.sep
    for path in (__file__ + "/..", torch.__file__, jax.__file__)
    if path is not None
)
#: A context manager made from a generator runs under a frame of contextlib, which is nobody's line.
_OWN = (*_FOLDERS, contextlib.__file__)


def user_frame() -> FrameType | None:
    """The frame of the user's code that is running now; None where there is none (a thread of torch's own)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (
        frame.f_code.co_filename.startswith(_OWN) or frame.f_code.co_filename.startswith("<frozen")
    ):
        frame = frame.f_back
    return frame


def user_line() -> str:
    """``file.py:12`` of the user's code that is running now, for messages."""
    frame = user_frame()
    if frame is None:
        return "an unknown line (called from a thread without Python frames, such as autograd's)"
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
