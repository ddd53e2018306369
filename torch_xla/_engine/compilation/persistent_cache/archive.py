"""Export of a cache folder to a tar file, and import from one, for ``torch-xla cache``. Unpickles nothing.

Loading a program runs code from it, so an archive is as sensitive as the folder: it is imported only if no user except
this one and root can have written it, and only regular files with the names and checksums of the cache are taken.
"""

from __future__ import annotations

import json
import os
import tarfile
import uuid
from pathlib import Path
from typing import IO

from torch_xla._engine.base import atomic_file, private_folder
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.persistent_cache.cache_files import ENTRY, PROGRAM, unpack
from torch_xla._engine.compilation.persistent_cache.maintenance import CacheFile


class ArchiveError(RuntimeError):
    """An archive cannot be imported. The message says why."""


def export_files(files: list[CacheFile], target: Path) -> int:
    """Write the files to a tar file, which only this user may read; return their number. Raises OSError."""
    with atomic_file.atomic_write(target) as part:
        os.fchmod(part.fileno(), 0o600)
        with tarfile.open(fileobj=part, mode="w:gz" if target.suffix in (".gz", ".tgz") else "w") as archive:
            return sum(_add(archive, file) for file in files)


def _add(archive: tarfile.TarFile, file: CacheFile) -> bool:
    """Add a file; False if another process removed it."""
    try:
        with file.path.open("rb") as opened:
            entry = archive.gettarinfo(arcname=file.path.name, fileobj=opened)
            entry.uname = entry.gname = ""
            entry.uid = entry.gid = 0
            archive.addfile(entry, opened)
    except FileNotFoundError:
        return False
    return True


def import_files(source: Path, folder: Path, *, is_trusted: bool = False) -> tuple[int, int]:
    """Add the files of an archive to a cache folder; return the numbers of new files and of files that were there.

    Args:
      source: the tar file.
      folder: the cache folder, which is created.
      is_trusted: accept an archive that other users could have written.

    Raises:
      ArchiveError: The archive is not trusted, is not a tar file, or has a file that does not belong to a cache.
      OSError: The archive or the folder cannot be used.
    """
    if not source.exists():
        raise ArchiveError(f"{source} does not exist")
    if not is_trusted and not private_folder.is_trusted_file(source):
        raise ArchiveError(
            f"{source} belongs to another user or is writable by other users: its programs would run as your user"
        )
    _make_folder(folder)
    try:
        with tarfile.open(source) as archive:
            members = archive.getmembers()
            for member in members:  # before any file is written
                if not member.isfile() or not ENTRY.fullmatch(member.name):
                    raise ArchiveError(f"{source}: {member.name!r} is not a file of the program cache")
            new = sum(_extract(archive, member, folder) for member in members)
    except tarfile.TarError as error:
        raise ArchiveError(f"{source} is not a tar file: {error}") from error
    return new, len(members) - new


def _make_folder(folder: Path) -> None:
    """Create the folder; check that no other user may write to the user's own folder."""
    for cache in private_folder.cache_folders(settings.cache_dir):
        if folder == cache / "programs":
            private_folder.make(folder, cache, close=False)
            return
    private_folder.make_readable(folder)
    if not private_folder.is_own(folder):
        raise PermissionError(f"{folder} belongs to another user")


def _extract(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path) -> bool:
    """Write one file atomically; False if it exists."""
    target = folder / member.name
    if target.exists():
        return False
    opened = archive.extractfile(member)
    assert opened is not None  # a regular file
    data = _check(member.name, opened)
    part = folder / f"{target.stem}.{uuid.uuid4().hex}"
    try:
        part.write_bytes(data)
        os.utime(part, (member.mtime, member.mtime))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)
    return True


def _check(name: str, opened: IO[bytes]) -> bytes:
    """Return the contents of a file. Raises ArchiveError if its checksum or format is wrong."""
    data = opened.read()
    try:
        if PROGRAM.fullmatch(name):
            unpack(name, data)
        else:
            json.loads(data)
    except ValueError as error:
        raise ArchiveError(f"{name} is damaged or was written by another version of torch_xla: {error}") from error
    return data
