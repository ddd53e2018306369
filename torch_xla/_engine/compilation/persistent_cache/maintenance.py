"""Lists and prunes a cache folder, for ``torch-xla cache``. Imports neither torch nor jax; unpickles nothing."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_xla._engine.base import private_folder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.persistent_cache.cache_files import (
    ENTRY,
    PARTIAL,
    PARTIAL_MAX_AGE,
    PROGRAM,
    read_info,
    remove_file,
    scan_folder,
)


@dataclass(frozen=True, slots=True)
class CacheFile:
    """A file of the cache. ``last_used`` is in seconds since the epoch."""

    path: Path
    size: int
    last_used: float

    @property
    def is_program(self) -> bool:
        """Whether the file has an executable."""
        return PROGRAM.fullmatch(self.path.name) is not None

    def info(self) -> dict[str, Any] | None:
        """Return the description of a program; None if it has another format or cannot be read."""
        try:
            return read_info(self.path)
        except OSError:
            return None


def configured_folder() -> Path | None:
    """Return the cache folder that a process with this environment uses; None if the cache is disabled."""
    given = settings.XLA_PERSISTENT_CACHE_PATH
    if given is not None:
        return given if given != Path() else None
    folders = [cache / "programs" for cache in private_folder.cache_folders(settings.cache_dir)]
    return next((folder for folder in folders if folder.is_dir()), folders[0])


def list_files(folder: Path) -> list[CacheFile]:
    """Return the files of the cache in a folder, the most recently used first. Raises OSError."""
    found = [
        CacheFile(Path(entry.path), info.st_size, info.st_mtime)
        for entry, info in scan_folder(folder)
        if ENTRY.fullmatch(entry.name)
    ]
    return sorted(found, key=lambda file: file.last_used, reverse=True)


def files_to_prune(
    files: list[CacheFile], unused_for: float | None = None, max_bytes: int | None = None, old_formats: bool = False
) -> list[CacheFile]:
    """Return the files to remove.

    Args:
      files: the files of a folder, the most recently used first.
      unused_for: remove files that were not used for this number of seconds.
      max_bytes: remove the least recently used files until the others have at most this size.
      old_formats: remove programs that this version of torch_xla cannot read.

    Graph entries whose program is missing or is removed are always included.
    """
    now, kept, size = time.time(), [], 0
    for file in files:
        is_old = unused_for is not None and now - file.last_used > unused_for
        is_unreadable = old_formats and file.is_program and file.info() is None
        size += 0 if is_old or is_unreadable else file.size
        if not is_old and not is_unreadable and (max_bytes is None or size <= max_bytes):
            kept.append(file)
    programs = {file.path.name for file in kept if file.is_program}
    remaining = {file.path for file in kept if _has_program(file, programs)}
    return [file for file in files if file.path not in remaining]


def _has_program(file: CacheFile, programs: set[str]) -> bool:
    """Whether the program of a graph entry is in ``programs``; True for other files."""
    if file.path.suffix != ".graph":
        return True
    with suppress(OSError, ValueError, LookupError, TypeError):
        return json.loads(file.path.read_text())["program"] in programs
    return False


def remove_files(files: list[CacheFile]) -> int:
    """Remove the files; return the number of bytes that were freed."""
    freed = 0
    for file in files:
        remove_file(file.path)
        freed += 0 if file.path.exists() else file.size
    return freed


def remove_partial_files(folder: Path) -> None:
    """Remove files that killed processes did not finish."""
    for entry, info in scan_folder(folder):
        if PARTIAL.fullmatch(entry.name) and time.time() - info.st_mtime > PARTIAL_MAX_AGE:
            remove_file(entry.path)
