"""Executables compiled here, put where the machine that has the target looks for them: the persistent cache.

The name of a file there is a hash of the program and of all that decides what XLA makes of it (storage.py); that
machine needs the same versions of jax, jaxlib and libtpu, and the same flags.
"""

from __future__ import annotations

from pathlib import Path

from torch_xla._engine.aot.target_compiler import CompiledTargetProgram
from torch_xla._engine.base import private_folder
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder


def write_to_cache(folder: Path, compiled: CompiledTargetProgram) -> Path | None:
    """Adds a program to a folder, which is made; returns its file. None for a program that calls Python.

    Raises OSError, and what jax raises where a compiler cannot give its executables away.
    """
    private_folder.make_readable(folder)
    files = CacheFolder(folder, readonly=False)
    places = compiled.lowered.target.devices[: compiled.lowered.chips]
    file = files.executable_path(compiled.lowered.stage.as_text(), places)
    if file is not None and not file.exists():
        files.write(file, compiled.stage, places)
    return file
