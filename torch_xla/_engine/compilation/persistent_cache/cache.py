"""Compiles a program, or takes it from the persistent cache: a folder in which other processes left theirs.

    XLA_PERSISTENT_CACHE_PATH   TORCH_XLA_PERSISTENT_CACHE_GB   folder               may hold
    unset                       unset                           the user's own       4 GB
    unset                       a number                        the user's own       that; 0: any number
    empty                       -                               none
    a path                      unset                           that                 any number: it may be shipped
    a path                      a number                        that                 that; 0: any number

initialize() names one as a path does. The user's own folder is used where only the user may write to it. What these
variables say is read when the first device is used (prefetch.py); a compilation warns of one that is set later.
"""

from __future__ import annotations

import os
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import jax

from torch_xla._engine.base import private_folder, xla_flags
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.compilation.persistent_cache import prefetch
from torch_xla._engine.compilation.persistent_cache.prefetch import Prefetcher
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder, CorruptEntryError, GraphEntry
from torch_xla._engine.cpu_backend import compile_options
from torch_xla._engine.diagnostics import metrics, step_timings

_USUAL_LIMIT = 4  # GB, of the user's own folder

#: What says where programs are kept.
_WHERE = ("XLA_PERSISTENT_CACHE_PATH", "XLA_PERSISTENT_CACHE_READ_ONLY", "TORCH_XLA_PERSISTENT_CACHE_GB")
_warned: set[str] = set()  # of these, once for each

# The folder in use: None until the first build or initialize(), then False (there is none) or the folder. initialize()
# may replace it at any time, for the programs built from then on.
_files: CacheFolder | bool | None = None
_ahead: Prefetcher | None = None  # from the first use of a device on, where its programs are kept
_lock = fork_safe_lock()


def initialize(path: str | os.PathLike[str], readonly: bool = False) -> None:
    """Keeps the programs compiled from now on in the folder ``path``, and takes those that are there already.

    With ``readonly`` nothing is written. Replaces what XLA_PERSISTENT_CACHE_PATH says. Only trusted users may be able
    to write to the folder. Raises OSError where it cannot be made or, with ``readonly``, does not exist.
    """
    global _files
    files = _open(Path(path).expanduser().absolute(), readonly)
    with _lock:
        _files = files


def current_cache() -> CacheFolder | None:
    """The folder, if one has been needed or named so far."""
    return _files if isinstance(_files, CacheFolder) else None


def _open(folder: Path, readonly: bool) -> CacheFolder:
    if not readonly:
        private_folder.make_readable(folder)
    elif not folder.is_dir():
        raise FileNotFoundError(f"persistent compilation cache: the folder {folder}, to be read only, does not exist")
    return CacheFolder(folder, readonly, _limit(0))


def _limit(usual: int) -> int | None:
    given = settings.TORCH_XLA_PERSISTENT_CACHE_GB
    return (usual if given is None else given) * 2**30 or None


def _default_folder() -> CacheFolder | None:
    """The folder that is used where none is named; None, said in a warning, where there cannot be one."""
    readonly = settings.XLA_PERSISTENT_CACHE_READ_ONLY
    refused: list[OSError] = []
    for cache in private_folder.cache_folders(settings.cache_dir):
        folder = cache / "programs"
        try:
            if readonly and not folder.is_dir():
                return None
            _check_users_own(folder, cache, readonly)
        except OSError as error:
            refused.append(error)
            if private_folder.is_own(folder):  # which this user has opened to others
                break
            continue
        if refused:
            _warn(f"compiled programs are kept in {folder}: {refused[0]}. {_ANOTHER_FOLDER}")
        return CacheFolder(folder, readonly, _limit(_USUAL_LIMIT))
    _warn(f"compiled programs are not kept for the next process: {refused[0]}. {_ANOTHER_FOLDER}")
    return None


_ANOTHER_FOLDER = "XLA_PERSISTENT_CACHE_PATH names another folder; set to nothing, it turns this off"


def _check_users_own(folder: Path, cache: Path, readonly: bool) -> None:
    if readonly:
        private_folder.check(folder, cache, close=False)
    else:
        private_folder.make(folder, cache, close=False)
    if not os.access(folder, os.R_OK | os.X_OK | (0 if readonly else os.W_OK)):
        raise PermissionError(f"this user may not write to {folder}")


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
    """The first device is about to be used: begins to load the programs that this script used the last time."""
    global _ahead
    try:
        files = _open_configured()
        _ahead = prefetch.for_current_script(files, device) if files is not None else None
    except OSError:  # the first compilation tells
        return
    if _ahead is not None:
        _ahead.start()


def load_or_compile(
    lower: Callable[[], jax.stages.Lowered],
    places: Sequence[jax.Device],
    graph: str | None,
    calls: Counter[str],
) -> tuple[jax.stages.Compiled, bool]:
    """The executable of ``lower()`` for the devices ``places``, and whether it is from the cache.

    Without ``places`` it is always compiled. With the name of a graph (graph_key.py) ``lower`` is called only where
    the program of that graph is not in the cache; ``calls``, which ``lower`` fills with the handlers that the program
    calls, is filled then, too.

    The time, that of ``lower`` included, is a sample of PersistentCacheLoad if it has, and of CompileTime otherwise.
    """
    start = time.perf_counter_ns()
    with step_timings.timed_block("CompileTime"):
        files = _open_configured() if places else None
        _warn_of_late_settings()
        if files is None:
            compiled, loaded, write = compile_options.compile_with_options(lower(), places), False, None
        else:
            compiled, loaded, write = _load_or_compile(files, lower, places, graph, calls)
    name = "PersistentCacheLoad" if loaded else "CompileTime"
    metrics.sample(name, time.perf_counter_ns() - start, metrics.format_time)
    if write is not None:
        write()
    return compiled, loaded


def _warn_of_late_settings() -> None:
    _warn_of_late_flags()
    files = current_cache()
    late = [name for name in settings.changed_after_read(_WHERE) if name not in _warned]
    named = os.environ.get("XLA_PERSISTENT_CACHE_PATH")
    if files is not None and named and Path(named).expanduser().absolute() == files.folder:  # by initialize(), too
        late = [name for name in late if name != "XLA_PERSISTENT_CACHE_PATH"]
    _warned.update(late)
    for name in late:
        kept = "are not kept" if files is None else f"are kept in {files.folder}"
        warnings.warn(
            f"torch_xla: {name} was set after the first use of a device, and changes nothing: compiled programs "
            f"{kept}, as was decided then. Set it before, or call torch_xla.runtime.initialize_cache(path).",
            UserWarning,
            stacklevel=2,
        )


def _warn_of_late_flags() -> None:
    late = [name for name in xla_flags.read().changed_late() if name not in _warned]
    _warned.update(late)
    for name in late:
        warnings.warn(
            f"torch_xla: {name} was changed after XLA had read it, and changes nothing: XLA parses its flags once in "
            "a process. Set it before the first use of a device.",
            UserWarning,
            stacklevel=2,
        )


_Found = tuple[jax.stages.Compiled, bool, Callable[[], None] | None]


def _load_or_compile(
    files: CacheFolder,
    lower: Callable[[], jax.stages.Lowered],
    places: Sequence[jax.Device],
    graph: str | None,
    calls: Counter[str],
) -> _Found:
    """A program, whether it was in the files, and what adds to them what was not.

    the graph is noted, its program there   loaded, not traced
    the program is there                    traced, loaded; the graph is noted
    neither                                 traced, compiled; the program is added, the graph is noted
    """
    note = files.graph_entry_path(graph, places) if graph else None
    known = _read_entry(files, note) if note else None
    if known is not None:
        found = _read(files, known.program, places)
        if found is not None:
            calls.update(known.calls)
            metrics.count("PersistentCacheHit")
            metrics.count("PersistentCacheGraphHit")
            return found, True, lambda: _record_use(files, known.program, places)
    lowered = lower()
    text = lowered.as_text()
    file = files.executable_path(text, places)
    if file is None:
        return compile_options.compile_with_options(lowered, places, text), False, None
    found = _read(files, file, places) if known is None or known.program != file else None
    metrics.count("PersistentCacheHit" if found else "PersistentCacheMiss")
    compiled = found or compile_options.compile_with_options(lowered, places, text)
    now = GraphEntry(file, dict(calls))

    def write() -> None:
        if not found:
            _write(files, lambda: files.write(file, compiled, places), "PersistentCacheWrite")
        if note is not None and file.exists():
            _write(files, lambda: files.write_graph_entry(note, now))
        _record_use(files, file, places)

    return compiled, found is not None, None if files.readonly else write


def _record_use(files: CacheFolder, file: Path, places: Sequence[jax.Device]) -> None:
    if _ahead is not None:
        try:
            _ahead.record_use(file, places)
        except OSError as error:
            metrics.count("PersistentCacheWriteFailure")
            _warn(f"what this script uses cannot be noted in {files.folder}: {error}")


def _read(files: CacheFolder, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
    try:
        ahead = _ahead.take(file, places) if _ahead is not None else None
        found = ahead or files.read(file, places)
        return found.compiled if found else None
    except (CorruptEntryError, OSError) as error:
        metrics.count("PersistentCacheDeserializeFailure")
        _warn(f"a program of the persistent compilation cache cannot be loaded, and is compiled again: {error}")
        return None


def _read_entry(files: CacheFolder, note: Path) -> GraphEntry | None:
    try:
        return files.read_graph_entry(note)
    except CorruptEntryError as error:
        metrics.count("PersistentCacheDeserializeFailure")
        _warn(f"a note of the persistent compilation cache cannot be used, and is written again: {error}")
        return None


def _write(files: CacheFolder, add: Callable[[], int], counted: str | None = None) -> None:
    try:
        evicted = add()
        if counted:
            metrics.count(counted)
        if evicted:
            metrics.count("PersistentCacheEvicted", evicted)
    except Exception as error:  # the program itself is fine, whatever the disk or the backend says
        metrics.count("PersistentCacheWriteFailure")
        _warn(f"a program cannot be added to the persistent compilation cache in {files.folder}: {error}")


def _warn(text: str) -> None:
    warnings.warn(f"torch_xla: {text}", RuntimeWarning, stacklevel=2)
