"""Exports executables to a persistent compilation cache, where the machine that has the target loads them.

The file name is a hash of the program and of everything that affects its compilation. The machine with the target needs
the same versions of jax, jaxlib and libtpu, and the same XLA flags.
"""

from __future__ import annotations

from pathlib import Path

from torch_xla._engine.aot.target_compiler import CompiledTargetProgram
from torch_xla._engine.base import private_folder
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder


def write_to_cache(folder: Path, compiled: CompiledTargetProgram) -> Path | None:
    """Write a program to a cache folder, which is created; return its file, or None for a program that calls Python.

    Raises:
      OSError: the file cannot be written.
      Exception: jax cannot serialize the executables of this compiler.
    """
    private_folder.make_readable(folder)
    files = CacheFolder(folder, readonly=False)
    places = compiled.lowered.target.devices[: compiled.lowered.chips]
    file = files.executable_path(compiled.lowered.stage.as_text(), places)
    if file is not None and not file.exists():
        files.write(file, compiled.stage, places)
    return file
