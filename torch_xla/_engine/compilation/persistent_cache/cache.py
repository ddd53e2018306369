"""The persistent compilation cache: loads programs that another process compiled, or compiles and stores them.

    XLA_PERSISTENT_CACHE_PATH   TORCH_XLA_PERSISTENT_CACHE_MAX_GB   folder               size limit
    unset                       unset                           the user's default   4 GB
    unset                       a number                        the user's default   that number; 0: no limit
    empty                       -                               none (cache disabled)
    a path                      unset                           that path            none: the folder may be distributed
    a path                      a number                        that path            that number; 0: no limit

initialize() sets a path as the variable does. The default folder is used only if it is writable by this user alone.
These variables are read at the first use of a device (prefetch.py); a compilation warns if one is set later.
"""

from __future__ import annotations

import functools
import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from torch_xla._engine.base import private_folder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.persistent_cache import job_programs, late_settings, prefetch, storage
from torch_xla._engine.compilation.persistent_cache.prefetch import Prefetcher
from torch_xla._engine.compilation.persistent_cache.serialized_program import CorruptEntryError
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder, GraphEntry
from torch_xla._engine.cpu_backend import compile_options
from torch_xla._engine.diagnostics import metrics, step_timings

_DEFAULT_LIMIT = 4  # GB, of the user's default folder

# The folder in use: None until the first compilation or initialize(), then the folder, or False if the cache is
# disabled. initialize() may replace it at any time, for all later compilations.
_files: CacheFolder | bool | None = None
_ahead: Prefetcher | None = None  # set at the first use of a device, if its programs are cached
_is_exiting = False  # set once, by stop_prefetch
_lock = fork_safe_lock()


def initialize(path: str | os.PathLike[str], readonly: bool = False) -> None:
    """Load and store compiled programs in the folder ``path`` from now on.

    Overrides XLA_PERSISTENT_CACHE_PATH. Only trusted users may have write access to the folder.

    Args:
      path: the folder, which is created.
      readonly: load programs only; write nothing.

    Raises:
      OSError: the folder cannot be created or, with ``readonly``, does not exist.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.runtime as xr
      >>> xr.initialize_cache("programs")
      >>> x = torch.ones(2, device="xla") + 1
      >>> torch_xla.sync()
    """
    global _files
    files = _open(Path(path).expanduser().absolute(), readonly)
    with _lock:
        _files = files


def current_cache() -> CacheFolder | None:
    """Return the folder in use; None before the first compilation or initialize(), and if the cache is disabled."""
    return _files if isinstance(_files, CacheFolder) else None


def _open(folder: Path, readonly: bool) -> CacheFolder:
    if not readonly:
        private_folder.make_readable(folder)
    elif not folder.is_dir():
        raise FileNotFoundError(f"persistent compilation cache: the read-only folder {folder} does not exist")
    return CacheFolder(folder, readonly, _limit(0))


def _limit(default: int) -> int | None:
    given = settings.TORCH_XLA_PERSISTENT_CACHE_MAX_GB
    return (default if given is None else given) * 2**30 or None


def _default_folder() -> CacheFolder | None:
    """Return the user's default folder; warns and returns None if it cannot be used."""
    readonly = settings.XLA_PERSISTENT_CACHE_READ_ONLY
    errors: list[OSError] = []
    for cache in private_folder.cache_folders(settings.cache_dir):
        folder = cache / "programs"
        try:
            if readonly and not folder.is_dir():
                return None
            _check_users_own(folder, cache, readonly)
        except OSError as error:
            errors.append(error)
            if private_folder.is_own(folder):  # this user gave others write access
                break
            continue
        if errors:
            _warn(f"the persistent compilation cache uses {folder}: {errors[0]}. {_ANOTHER_FOLDER}")
        return CacheFolder(folder, readonly, _limit(_DEFAULT_LIMIT))
    _warn(f"the persistent compilation cache is disabled: {errors[0]}. {_ANOTHER_FOLDER}")
    return None


_ANOTHER_FOLDER = "Set XLA_PERSISTENT_CACHE_PATH to use another folder, or to an empty string to disable the cache"


def _check_users_own(folder: Path, cache: Path, readonly: bool) -> None:
    if readonly:
        private_folder.check(folder, cache, close=False)
    else:
        private_folder.make(folder, cache, close=False)
    if not os.access(folder, os.R_OK | os.X_OK | (0 if readonly else os.W_OK)):
        raise PermissionError(f"no write access to {folder}")


def _open_configured() -> CacheFolder | None:
    global _files
    with _lock:
        if _files is None:
            path = settings.XLA_PERSISTENT_CACHE_PATH
            if path is None:
                _files = _default_folder() or False
            else:
                _files = path != Path() and _open(path, settings.XLA_PERSISTENT_CACHE_READ_ONLY)
        return _files if isinstance(_files, CacheFolder) else None


def start_prefetch(device: jax.Device) -> None:
    """Start to load the programs that this script used in its last run; called at the first use of a device."""
    global _ahead
    try:
        files = _open_configured()
        ahead = prefetch.for_current_script(files, device) if files is not None else None
    except OSError:  # the first compilation reports it
        return
    with _lock:
        if ahead is None or _is_exiting:
            return
        _ahead = ahead
    ahead.start()


def stop_prefetch() -> None:
    """Stop loading programs, for the rest of the process. For atexit: a daemon thread may use a device meanwhile."""
    global _is_exiting
    with _lock:
        _is_exiting = True
    if _ahead is not None:
        _ahead.shutdown()


def load_or_compile(
    lower: Callable[[], jax.stages.Lowered],
    places: Sequence[jax.Device],
    graph: str | None,
    calls: Counter[str],
) -> tuple[jax.stages.Compiled, bool]:
    """Return the executable of ``lower()``, and whether it was loaded rather than compiled.

    The time, including that of ``lower``, is a sample of PersistentCacheLoad on a hit, of JobProgramFetch for a program
    that another process of the job compiled, and of CompileTime otherwise.

    Args:
      lower: traces and lowers the graph; fills ``calls``.
      places: the devices of the program.
      graph: the graph's cache key (graph_key.py). If the cache has its program, ``lower`` is not called.
      calls: counts the CPU kernels that the program calls; also filled for a program that was not lowered.
    """
    start = time.perf_counter_ns()
    with step_timings.timed_block("CompileTime"):
        files = _open_configured()
        late_settings.warn_of_late_settings(files.folder if files is not None else None)
        if files is not None or job_programs.is_enabled():
            compiled, source, write = _load_or_compile(files, lower, places, graph, calls)
        else:
            compiled, source, write = compile_options.compile_with_options(lower(), places), "CompileTime", None
    duration = time.perf_counter_ns() - start
    if write is not None:
        write()
    metrics.sample(source, duration, metrics.format_time)
    return compiled, source != "CompileTime"


_Found = tuple[jax.stages.Compiled, str, Callable[[], None] | None]


def _load_or_compile(
    files: CacheFolder | None,
    lower: Callable[[], jax.stages.Lowered],
    places: Sequence[jax.Device],
    graph: str | None,
    calls: Counter[str],
) -> _Found:
    """Return a program, the metric of its time, and a function that stores the missing entries (None if read-only).

    graph entry and its program exist   loaded, not traced
    only the program exists             traced, loaded; the graph entry is written
    neither exists                      traced, compiled or, in a job, fetched; program and graph entry are written
    """
    note, known = _find_entry(files, graph, places) if files is not None and graph else (None, None)
    if files is not None and known is not None:
        found = _read(files, known.program, places)
        if found is not None:
            calls.update(known.calls)
            metrics.count("PersistentCacheHit")
            metrics.count("PersistentCacheGraphHit")
            folder, program = files, known.program
            return found, "PersistentCacheLoad", lambda: _record_use(folder, program, places)
    lowered = lower()
    text = lowered.as_text()
    name = storage.program_name(text, places)
    if name is None:
        return job_programs.compile_alone(lowered, places, text), "CompileTime", None
    compile_program = functools.partial(job_programs.compile_alone, lowered, places, text)
    if files is None:
        return *_compile_for_job(name, places, None, compile_program), None
    file = files.folder / name
    loaded = _read(files, file, places) if known is None or known.program != file else None
    metrics.count("PersistentCacheHit" if loaded else "PersistentCacheMiss")
    if loaded is not None:
        compiled, source = loaded, "PersistentCacheLoad"
    elif job_programs.is_enabled():
        compiled, source = _compile_for_job(name, places, files, compile_program)
    else:
        compiled, source = compile_program(), "CompileTime"
    is_new = loaded is None and not job_programs.is_enabled()
    write = functools.partial(_store, files, file, compiled if is_new else None, places, note, dict(calls))
    return compiled, source, None if files.readonly else write


def _compile_for_job(
    name: str, places: Sequence[jax.Device], files: CacheFolder | None, compile_program: job_programs.Compile
) -> tuple[jax.stages.Compiled, str]:
    compiled, fetched = job_programs.compile_or_fetch(name, places, files, compile_program)
    return compiled, "JobProgramFetch" if fetched else "CompileTime"


def _store(
    files: CacheFolder,
    file: Path,
    new: jax.stages.Compiled | None,
    places: Sequence[jax.Device],
    note: Path | None,
    calls: dict[str, int],
) -> None:
    """Store a new program, and the entry of its graph."""
    _record_use(files, file, places)
    if new is not None:
        _write(files, lambda: files.write(file, new, places), "PersistentCacheWrite")
    if note is not None and file.exists():
        _write(files, lambda: files.write_graph_entry(note, GraphEntry(file, calls)))


def _record_use(files: CacheFolder, file: Path, places: Sequence[jax.Device]) -> None:
    if _ahead is not None:
        try:
            _ahead.record_use(file, places)
        except OSError as error:
            metrics.count("PersistentCacheWriteFailure")
            _warn(f"could not write the list of this script's programs to {files.folder}: {error}")


def _read(files: CacheFolder, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
    try:
        ahead = _ahead.take(file, places) if _ahead is not None else None
        return ahead or files.read(file, places)
    except (CorruptEntryError, OSError) as error:
        metrics.count("PersistentCacheDeserializeFailure")
        _warn(f"could not load a program from the persistent compilation cache, compiling it again: {error}")
        return None


def _find_entry(files: CacheFolder, graph: str, places: Sequence[jax.Device]) -> tuple[Path | None, GraphEntry | None]:
    try:
        return files.find_graph_entry(graph, places)
    except CorruptEntryError as error:
        metrics.count("PersistentCacheDeserializeFailure")
        _warn(f"invalid graph entry in the persistent compilation cache, writing it again: {error}")
        return error.file, None


def _write(files: CacheFolder, add: Callable[[], int], counted: str | None = None) -> None:
    try:
        evicted = add()
        if counted:
            metrics.count(counted)
        if evicted:
            metrics.count("PersistentCacheEvicted", evicted)
    except Exception as error:  # the program is usable although it could not be stored
        metrics.count("PersistentCacheWriteFailure")
        _warn(f"could not write a program to the persistent compilation cache in {files.folder}: {error}")


def _warn(text: str) -> None:
    warnings.warn(f"torch_xla: {text}", RuntimeWarning, stacklevel=2)
