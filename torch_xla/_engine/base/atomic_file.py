"""Atomic file writes: a process that dies while it writes a file leaves the old file unchanged.

    part file next to the path, under a unique name -> flushed to disk -> renamed to the path

A process that is killed before the rename leaves its part file (``.NAME.UUID.part``) behind. The name contains a UUID
instead of a process id: two containers that share a filesystem may have equal process ids.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that replaces ``path`` when the block ends without an exception; otherwise nothing changes.

    Follows links, and preserves the mode of a file that it replaces. Writes directly to anything that is not a regular
    file (a pipe, /dev/null). Raises OSError if the folder is not writable.
    """
    target = Path(os.path.realpath(path))
    mode = _mode(target)
    if mode is not None and not stat.S_ISREG(mode):
        with target.open("wb") as file:
            yield file
        return
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        with open_temp_file(part) as file:
            yield file
            if mode is not None:
                os.fchmod(file.fileno(), stat.S_IMODE(mode))
            file.flush()
            os.fsync(file.fileno())
        part.replace(target)
        _flush_folder(target.parent)
    finally:
        part.unlink(missing_ok=True)


def open_temp_file(part: Path) -> IO[bytes]:
    """Open the part file for writing. Tests replace this function by one that fails."""
    return part.open("wb")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    """Flush a folder's entries, so that the new name survives a crash of the machine if the file system supports it."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
