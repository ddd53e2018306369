"""Folders of unfinished checkpoints: lock them while writing, and remove those of killed processes.

    created (locked by its writer) -> renamed to its step         the lock file is removed
                                   `-> removed                    the save failed
                                   `-> left                       the writer was killed: the next manager removes it

The kernel releases the lock when the writer exits, however it exits. A lock only covers processes of the same host:
some network filesystems lock per host. So a folder of another host's writer, and a folder without a lock file, is not
removed, and a warning is logged.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_LOCK = ".writer"
_log = logging.getLogger("torch_xla.checkpoint")


def machine_id() -> str:
    """Return an id of this host and its boot."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Create the folder, and hold its lock during the block. If the block raises, the folder is removed."""
    os.makedirs(folder, exist_ok=True)
    lock = os.path.join(folder, _LOCK)
    with open(lock, "w") as file:
        with suppress(OSError):  # no lock support: no process gets a lock, and the folder stays if this process dies
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(machine_id())
        file.flush()
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child also holds the file


def unlock(folder: str) -> None:
    """Remove the lock file of a renamed folder."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, _LOCK))


def remove_leftovers(path: str) -> None:
    """Remove the folders that killed writers of this host left in a folder of checkpoints."""
    for name in os.listdir(path):
        step = name.removeprefix(".").removesuffix(".writing")
        if name == f".{step}.writing" and step.isdigit():
            folder = os.path.join(path, name)
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                _log.info(
                    "%s was not removed: another process, or another host, may be writing it; delete it if not", folder
                )


def _is_abandoned(folder: str) -> bool:
    """Return whether the writer has certainly exited."""
    try:
        with open(os.path.join(folder, _LOCK), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return bool(machine_id()) and file.read() == machine_id()
    except OSError:  # locked, no lock file, or owned by another user
        return False
