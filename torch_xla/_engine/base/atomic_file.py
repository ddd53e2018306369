"""Files that appear whole or not at all: a process that dies while it writes one leaves the old one as it was.

    part file beside the path, under a unique name -> on disk -> renamed to the path

A process that is killed before that leaves its part file (``.NAME.UUID.part``) behind. Process and thread ids would not
do: two containers that share a filesystem have the same ones.
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
    """A file to write; it is at ``path`` when the block has ended well, and nothing has changed when it has not.

    A link is followed, and the mode of a file that is replaced is kept. What is no plain file (a pipe, /dev/null) is
    written to directly. Raises OSError where the folder cannot be written to.
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
    """The part file, to be written. Tests put one in its place that fails."""
    return part.open("wb")


def _mode(path: Path) -> int | None:
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _flush_folder(folder: Path) -> None:
    """So that the new name outlives a crash of the machine, too, where file systems know such a thing."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
