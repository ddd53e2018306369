"""Folders for files that contain executable code: shared libraries and compiled programs.

A file is loaded only if no user except this one and root can have written it:

    what                      owner              writable by others
    the cache folder          this user, root    only if it is this user's, or has the sticky bit as /tmp has
    folders below it          this user, root    no; one of this user's is made private, another one is rejected
    a shared library          this user, root    no; it is built again elsewhere

Folders are created with mode 0700, whatever the umask. If the cache folder cannot be used, the next of
``cache_folders`` is. This module imports nothing of torch.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from torch_xla._engine.base.settings import settings

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def cache_folders(first: Path) -> Iterator[Path]:
    """Yield the folder to use, then the fallbacks: none for a folder other than cache_dir."""
    yield first
    if first != settings.cache_dir:
        return
    with suppress(ValueError):  # the user has no home folder
        usual = settings.XDG_CACHE_HOME / "torch_xla"
        if usual != first:
            yield usual
    temporary = settings.temporary_cache_dir()
    if temporary != first:
        yield temporary


def make(folder: Path, cache: Path, *, close: bool = True) -> None:
    """Create a folder below ``cache`` and its missing parents, and check their permissions.

    With ``close``, make folders of this user private. Raises PermissionError if other users may write to one, and
    OSError.
    """
    with suppress(FileNotFoundError):
        _check_cache(cache)
    _make(folder)
    check(folder, cache, close=close)


def make_readable(folder: Path) -> None:
    """Create a folder that the user has named and its missing parents, writable by this user only."""
    _make(folder, 0o755)


def _make(folder: Path, mode: int = 0o700) -> None:
    if not folder.is_dir():
        if folder.parent != folder:
            _make(folder.parent, mode)
        folder.mkdir(mode=mode, exist_ok=True)


def check(folder: Path, cache: Path, *, close: bool = True) -> None:
    """Raise PermissionError if other users may write to one of the folders from ``cache`` to ``folder``.

    Raises OSError if one cannot be read; FileNotFoundError if it does not exist.
    """
    _check_cache(cache)
    parts = folder.relative_to(cache).parts
    for depth in range(1, len(parts) + 1):
        _check_below(cache.joinpath(*parts[:depth]), close)


def is_own(folder: Path) -> bool:
    """Whether the folder exists and belongs to this user."""
    try:
        return folder.stat().st_uid == os.geteuid()
    except OSError:
        return False


def is_trusted_file(file: Path) -> bool:
    """Whether the file exists and only this user or root may write to it. Raises OSError."""
    try:
        info = file.stat()
    except FileNotFoundError:
        return False
    return stat.S_ISREG(info.st_mode) and _is_owned(info) and not info.st_mode & _OTHERS_WRITE


def _is_owned(info: os.stat_result) -> bool:
    return info.st_uid in (os.geteuid(), 0)


def _check_cache(folder: Path) -> None:
    info = folder.stat()
    _check_owner(folder, info)
    if info.st_mode & _OTHERS_WRITE and not info.st_mode & stat.S_ISVTX and info.st_uid != os.geteuid():
        raise _refusal(folder)


def _check_below(folder: Path, close: bool) -> None:
    info = folder.stat()
    _check_owner(folder, info)
    if not info.st_mode & _OTHERS_WRITE:
        return
    if not close or info.st_uid != os.geteuid():
        raise _refusal(folder)
    folder.chmod(stat.S_IMODE(info.st_mode) & ~_OTHERS_WRITE)


def _check_owner(folder: Path, info: os.stat_result) -> None:
    if not _is_owned(info):
        owner = f"another user (uid {info.st_uid})"
        raise PermissionError(f"{folder} belongs to {owner}; refusing to load executables from it")


def _refusal(folder: Path) -> PermissionError:
    return PermissionError(f"{folder} is writable by other users; refusing to load executables from it")
