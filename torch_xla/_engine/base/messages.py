"""Format the messages to the user: a headline, then a cause, a fix and the page that explains the problem.

torch_xla: recompiled the graph at train.py:26 (14 ops)
  cause: the shape of input 2 changed from float32[16, 20] to float32[4, 20] (uploaded at train.py:21)
  fix: keep all batches the same size with DataLoader(..., drop_last=True)
  See: torch-xla explain recompilation
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import textwrap
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from torch_xla._engine.base import user_frames

_MOST_COLUMNS = 100
_DEFAULT_COLUMNS = 80  # without a terminal
_INDENT = "  "
#: A message does not break inside these: shapes, and the command that prints the page.
_UNBROKEN = re.compile(r"\w\[[^\]]*\]|torch-xla explain \S+")
_NO_BREAK_SPACE = "\u00a0"


def compose(headline: str, cause: str = "", fix: str = "", page: str = "") -> str:
    """Return the lines of a message, not wrapped. ``page`` is the name of its page for ``torch-xla explain``."""
    rows = (("cause: ", cause), ("fix: ", fix), ("See: torch-xla explain ", page))
    return "\n".join([headline, *(label + text for label, text in rows if text)])


def render(text: str) -> str:
    """Return a composed message for the terminal: with a prefix, short paths, indented and wrapped."""
    return wrap(f"torch_xla: {text}")


def wrap(text: str) -> str:
    """Return a composed message with short paths, indented and wrapped."""
    headline, *rest = shorten_paths(text).splitlines()
    return "\n".join([_wrap_line(headline, ""), *(_wrap_line(line, _INDENT) for line in rest)])


def _wrap_line(line: str, indent: str) -> str:
    unbroken = _UNBROKEN.sub(lambda found: found[0].replace(" ", _NO_BREAK_SPACE), line)
    wrapped = textwrap.fill(
        unbroken, terminal_columns(), initial_indent=indent, subsequent_indent=2 * _INDENT,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return wrapped.replace(_NO_BREAK_SPACE, " ")


def terminal_columns() -> int:
    """Return the width of messages: that of the terminal, at most 100; 80 without a terminal."""
    columns = shutil.get_terminal_size((_DEFAULT_COLUMNS, 24)).columns
    return max(40, min(columns, _MOST_COLUMNS))


def _start_folder() -> str:
    try:
        return os.path.join(os.getcwd(), "")
    except OSError:  # the folder was removed
        return ""


_FOLDER = _start_folder()


def shorten_paths(text: str) -> str:
    """Return the text with the paths of files below the folder in which the process started relative to it."""
    if len(_FOLDER) < 2 or _FOLDER not in text:
        return text
    return re.sub(rf"(?<![\w/.-]){re.escape(_FOLDER)}", "", text)


def warn(text: str, category: type[Warning] = UserWarning) -> None:
    """Issue a composed message as a warning at the user's line; the caller reports each site once."""
    frame = user_frames.user_frame()
    file, line = ("torch_xla", 0) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    with clear_progress_bars():
        warnings.warn_explicit(render(text), category, file, line)


def clear_progress_bars() -> AbstractContextManager[None]:
    """Remove the progress bars of tqdm from the terminal in the block, and draw them again at its end."""
    bars: Any = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if bars is None or sys.stderr is None:
        return contextlib.nullcontext()
    return _clear(bars)


@contextlib.contextmanager
def _clear(bars: Any) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(Exception):  # a message is more important than a progress bar
            stack.enter_context(bars.external_write_mode(file=sys.stderr))
        yield
