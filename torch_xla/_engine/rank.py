"""Which of the processes that train together this one is, from the environment: for names of files, and who speaks."""

from __future__ import annotations

from torch_xla._engine.settings import settings


def ordinal() -> int:
    """This process's number among all; 0 where there is only one."""
    return settings.RANK


def local_ordinal() -> int:
    """This process's number among those of this machine."""
    return settings.LOCAL_RANK


def world_size() -> int:
    """The number of processes."""
    return settings.WORLD_SIZE
