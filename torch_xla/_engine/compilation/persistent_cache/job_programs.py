"""Compile each program once in a job of several processes: one process compiles, the others fetch its executable.

    on this machine                      the others read the file that the process wrote to its cache folder
    on other machines, or without a file the others get the bytes through the job's key-value store, and write a file

program_exchange.py chooses the process, and replaces it if it dies. Every process still traces and lowers the graph, as
the name of a program is a hash of its StableHLO. A program that calls back into Python is compiled by each process.

Loading a program runs code from it. The processes trust the network of their job, as jax's coordination service does,
files in their own folder, and others that only their user can have written.

On GPUs the processes of a program would share the autotuning of its kernels, and wait for each other. A process that
compiles alone turns that off.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax

from torch_xla._engine.base import private_folder
from torch_xla._engine.compilation.persistent_cache.serialized_program import (
    CorruptEntryError,
    load_program,
    pack_program,
)
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder
from torch_xla._engine.cpu_backend import compile_options
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.job import coordination, replicas
from torch_xla._engine.job.program_exchange import CompileTurn, Exchange

Compile = Callable[[], jax.stages.Compiled]


def is_enabled() -> bool:
    """Whether this process shares programs with others: it has joined a job of several processes."""
    return coordination.is_initialized()


def compile_or_fetch(
    name: str, places: Sequence[jax.Device], files: CacheFolder | None, compile_program: Compile
) -> tuple[jax.stages.Compiled, bool]:
    """Return a program that is not in this process's cache folder, and whether another process compiled it.

    A program is in the folder afterwards, unless that is read-only.

    Args:
      name: the file name of the program (storage.program_name).
      places: its devices.
      files: the cache folder; None if the cache is disabled.
      compile_program: compiles it.
    """
    exchange = Exchange(name, _processes(places))
    found = exchange.take_turn()
    if exchange.replaced:
        metrics.count("JobCompilersReplaced", exchange.replaced)
    if isinstance(found, CompileTurn):
        with exchange.announce_life(found):
            compiled = _compile(compile_program)
            exchange.publish(found, *_store(name, places, files, compiled))
        return compiled, False
    try:
        data = _read(found.file, files) if found.file is not None else found.data
        if data is not None:
            program = load_program(name, data, places, f"the program of rank {found.owner}")
            metrics.count("JobProgramsFetched")
            if files is not None and not files.readonly and found.file != files.folder / name:
                _write(files, name, data)
            return program, True
    except (CorruptEntryError, OSError) as error:
        metrics.count("PersistentCacheDeserializeFailure")
        _warn(f"could not load a program that rank {found.owner} compiled, compiling it again: {error}")
    compiled = _compile(compile_program)
    _store(name, places, files, compiled)
    return compiled, False


def _read(file: Path, files: CacheFolder | None) -> bytes:
    """Return the contents of a program file. Raises OSError."""
    is_in_own_folder = files is not None and file.parent == files.folder
    if not is_in_own_folder and not private_folder.is_trusted_file(file):
        raise PermissionError(f"{file} belongs to another user or is writable by other users")
    return file.read_bytes()


def _compile(compile_program: Compile) -> jax.stages.Compiled:
    compiled = compile_program()
    metrics.count("JobProgramsCompiled")
    return compiled


def compile_alone(lowered: jax.stages.Lowered, places: Sequence[jax.Device], text: str) -> jax.stages.Compiled:
    """Compile a program of a job without waiting for its other processes."""
    if places[0].platform in ("cuda", "gpu", "rocm") and replicas.process_count() > 1:
        options: dict[str, Any] = {"xla_gpu_shard_autotuning": False}
        return lowered.compile(compiler_options=options)
    return compile_options.compile_with_options(lowered, places, text)


def _processes(places: Sequence[jax.Device]) -> list[int]:
    """Return the ranks that may need a program: those of its devices, or all for a program of one device."""
    together = {place.process_index for place in places}
    return sorted(together) if len(together) > 1 else list(range(replicas.process_count()))


def _store(
    name: str, places: Sequence[jax.Device], files: CacheFolder | None, compiled: jax.stages.Compiled
) -> tuple[Path | None, bytes | None]:
    """Write a program to the cache folder; return its file, and its contents if the others cannot read the file."""
    try:
        data = pack_program(name, compiled, places)
    except Exception as error:  # the backend cannot serialize executables
        metrics.count("PersistentCacheWriteFailure")
        _warn(f"the processes of the job compile each program, because this one cannot be serialized: {error}")
        return None, None
    file = _write(files, name, data) if files is not None and not files.readonly else None
    is_local = replicas.process_count() == replicas.local_process_count()
    return file, None if is_local and file is not None else data


def _write(files: CacheFolder, name: str, data: bytes) -> Path | None:
    file = files.folder / name
    try:
        evicted = files.add_file(file, data)
    except OSError as error:
        metrics.count("PersistentCacheWriteFailure")
        _warn(f"could not write a program to the persistent compilation cache in {files.folder}: {error}")
        return None
    metrics.count("PersistentCacheWrite")
    if evicted:
        metrics.count("PersistentCacheEvicted", evicted)
    return file


def _warn(text: str) -> None:
    warnings.warn(f"torch_xla: {text}", RuntimeWarning, stacklevel=2)
