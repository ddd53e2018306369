"""Folders in which a checkpoint is being written, and those that a killed process has left.

    made (locked by its writer) -> renamed to its step            the lock file is removed
                               `-> removed                        the save failed
                               `-> left                           the writer was killed: the next manager removes it

The kernel frees the lock when the writer ends, however it ends. A lock tells of processes of the same machine only:
some network filesystems lock for each machine alone. So a folder of another machine's writer, and one without a lock
file, stays, and a message says so.
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


def _machine() -> str:
    """This machine, since its start."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@contextmanager
def lock_folder(folder: str) -> Iterator[None]:
    """Makes the folder, and locks it while the block runs. If the block fails, the folder is removed."""
    os.makedirs(folder, exist_ok=True)
    lock = os.path.join(folder, _LOCK)
    with open(lock, "w") as file:
        with suppress(OSError):  # no locks here: no other process gets one, and the folder stays if this process dies
            fcntl.flock(file, fcntl.LOCK_EX)
        file.write(_machine())
        file.flush()
        try:
            yield
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        finally:
            with suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # a forked child has the file, too


def unlock(folder: str) -> None:
    """Removes the lock file of a folder that was renamed."""
    with suppress(FileNotFoundError):
        os.unlink(os.path.join(folder, _LOCK))


def remove_leftovers(path: str) -> None:
    """Removes the folders of killed writers of this machine from a folder of checkpoints."""
    for name in os.listdir(path):
        step = name.removeprefix(".").removesuffix(".writing")
        if name == f".{step}.writing" and step.isdigit():
            folder = os.path.join(path, name)
            if _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)
            else:
                _log.info(
                    "%s stays: another process writes it, or one on another machine may; delete it if not", folder
                )


def _is_abandoned(folder: str) -> bool:
    """Whether the writer is known to have ended."""
    try:
        with open(os.path.join(folder, _LOCK), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return bool(_machine()) and file.read() == _machine()
    except OSError:  # locked, no lock file, another user's
        return False
