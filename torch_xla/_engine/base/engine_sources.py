"""Hash of the engine's source files as this process imported them.

Files may change under a running process: an upgrade, an edit of a rule, an editor's lock file. The imported code then
differs from the files on disk, so the hash of the files must not name anything that outlives the process.

    stamp before the engine is imported -> hash on first use -> stamps unchanged: the hash is valid
                                                             -> stamps changed: unknown for the rest of the process

A stamp holds the inode and its modification times in nanoseconds. This module imports nothing of the engine.
"""

from __future__ import annotations

import functools
import hashlib
from pathlib import Path

_ENGINE = Path(__file__).parent.parent

_Stamp = tuple[int, ...]


def _stamp(file: Path) -> _Stamp | None:
    try:
        info = file.stat()
    except OSError:
        return None
    return info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns


def stamp_files(files: list[Path]) -> dict[Path, _Stamp | None]:
    """Return stamps that detect changes of these files; None for a file that cannot be read."""
    return {file: _stamp(file) for file in files}


def is_unchanged(stamps: dict[Path, _Stamp | None]) -> bool:
    """Whether all these files exist and have not changed since they were stamped."""
    return all(stamp is not None and _stamp(file) == stamp for file, stamp in stamps.items())


def list_files(folder: Path, *patterns: str) -> list[Path]:
    """Return the source files below a folder, sorted, without hidden files (of editors)."""
    found = (file for pattern in patterns for file in folder.rglob(pattern))
    return sorted(file for file in found if not file.name.startswith("."))


_imported = stamp_files(list_files(_ENGINE, "*.py"))


def digest() -> bytes | None:
    """Return a hash of the engine's source files as this process imported them.

    None if there are none, one cannot be read, or one has changed since.
    """
    if not _imported or not is_unchanged(_imported):
        return None
    try:
        found = _hash()
    except OSError:
        return None
    return found if is_unchanged(_imported) else None


@functools.cache
def _hash() -> bytes:
    found = hashlib.sha256()
    for file in _imported:
        content = file.read_bytes()
        found.update(f"\0{file.relative_to(_ENGINE)}\0{len(content)}\0".encode() + content)
    return found.digest()
