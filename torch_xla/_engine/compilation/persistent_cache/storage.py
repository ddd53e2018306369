"""The folder of the persistent compilation cache: keys, reading, atomic writes and eviction.

A file holds one executable. Its name is a hash of the program's StableHLO and of all else that decides the executable:
the versions of jax, jaxlib, the backend and the CPU kernel library, devices, processor, flags. So anything that changes
a program (a storage dtype, a precision, a rule of another release) changes the name, and processes with different
settings share one folder. The rank of a process is not in it: the processes of a job share their programs. Files are
written atomically and never change. With a size limit, the least recently used files are evicted. Any number of
processes may add, read and remove files concurrently.

cache_files.py lists the files and their formats.

Loading an executable runs code from it: only trusted users may have write access to the folder. jax's own cache is not
used: its folder is process-wide jax configuration, which belongs to the user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jaxlib

from torch_xla._engine.base import host_calls, xla_flags
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compilation.persistent_cache.cache_files import (
    ENTRY,
    MAGIC,
    PARTIAL,
    PARTIAL_MAX_AGE,
    PROGRAM,
    remove_file,
    scan_folder,
)
from torch_xla._engine.compilation.persistent_cache.serialized_program import (
    CorruptEntryError,
    load_program,
    pack_program,
)
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import capabilities
from torch_xla._engine.job import replicas
from torch_xla._engine.lowering import cpu_kernel_call

#: Platforms whose executables contain no code for the host's processor. That of an unknown platform might.
_WITHOUT_HOST_CODE = ("cuda", "gpu", "rocm", "tpu")

#: Platforms whose executable for one device may be loaded onto another device of its kind.
_MOVABLE = ("cpu", "cuda", "gpu", "rocm")

#: jax settings that change the executable of a program, but not its StableHLO.
_OPTIONS = (
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)

#: Maximum number of files in a folder with a limit: scanning more takes longer than compiling a program.
MOST_FILES = 20_000


class CacheEvictor:
    """Keeps a folder within its size limit. One for each folder that this process adds files to.

    The first added file, and then each added hundredth of the limit, scans the folder and removes the oldest files.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = fork_safe_lock()
        self._left = 0  # bytes and files that may be added before the next scan
        self._files_left = 0

    def record_added(self, folder: Path, size: int) -> int:
        """Evict files after one was added, if needed. Returns the number of programs removed."""
        with self._lock:
            self._left -= size
            self._files_left -= 1
            if self._left > 0 and self._files_left > 0:
                return 0
            self._left, self._files_left = self.limit // 100, MOST_FILES // 100
            return self._evict(folder)

    def _evict(self, folder: Path) -> int:
        now = time.time()
        files: list[tuple[float, int, str]] = []
        for entry, info in scan_folder(folder):
            if ENTRY.fullmatch(entry.name):
                files.append((info.st_mtime, info.st_size, entry.path))
            elif PARTIAL.fullmatch(entry.name) and now - info.st_mtime > PARTIAL_MAX_AGE:
                remove_file(entry.path)
        size = sum(found[1] for found in files)
        if size <= self.limit and len(files) <= MOST_FILES:
            return 0
        files.sort(reverse=True)
        programs = 0
        while files and (size > 0.9 * self.limit or len(files) > 0.9 * MOST_FILES):
            _, freed, path = files.pop()
            size -= freed
            programs += path.endswith(".xla")
            remove_file(path)
        return programs


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove partial files of killed processes from a folder without a limit; once per process."""
    now = time.time()
    for entry, info in scan_folder(folder):
        if PARTIAL.fullmatch(entry.name) and now - info.st_mtime > PARTIAL_MAX_AGE:
            remove_file(entry.path)


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """A graph that was compiled before: the file of its program, and the CPU kernels that it calls."""

    program: Path
    calls: dict[str, int]


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """An existing cache folder. With ``readonly`` no file is added. ``limit``: maximum size in bytes."""

    folder: Path
    readonly: bool
    limit: int | None = None
    _room: CacheEvictor | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_room", CacheEvictor(self.limit) if self.limit else None)

    def size(self) -> int:
        """Return the bytes of all programs in the folder."""
        return sum(info.st_size for entry, info in scan_folder(self.folder) if PROGRAM.fullmatch(entry.name))

    def executable_path(self, text: str, places: Sequence[jax.Device]) -> Path | None:
        """Return the path of the executable of a StableHLO program for these devices, whether or not it exists.

        None for a program that is valid only in this process (host_calls.py).
        """
        name = program_name(text, places)
        return None if name is None else self.folder / name

    def read(self, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """Load a program onto its devices; None if the file does not exist. Raises CorruptEntryError."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        if not self.readonly:
            with suppress(OSError):
                os.utime(file)  # most recently used, evicted last
        return load_program(file.name, data, places, str(file))

    def write(self, file: Path, program: jax.stages.Compiled, places: Sequence[jax.Device]) -> int:
        """Store a program; return the number of programs evicted.

        Raises OSError, and jax's error if the backend cannot serialize executables.
        """
        return self.add_file(file, pack_program(file.name, program, places))

    def graph_entry_path(self, name: str, places: Sequence[jax.Device]) -> Path:
        """Return the path of the entry of the graph with key ``name`` for these devices, whether or not it exists."""
        return self.folder / f"{_hash([name, *_environment_key(places)])}.graph"

    def find_graph_entry(self, name: str, places: Sequence[jax.Device]) -> tuple[Path, GraphEntry | None]:
        """Return the path and the contents of a graph's entry; None where there is none or it cannot be parsed.

        Raises CorruptEntryError, with the path, for an entry that belongs to another graph.
        """
        path = self.graph_entry_path(name, places)
        return path, self.read_graph_entry(path)

    def read_graph_entry(self, graph: Path) -> GraphEntry | None:
        """Return the entry of a graph; None if there is none or it cannot be parsed.

        Raises CorruptEntryError for the entry of another graph.
        """
        try:
            found = json.loads(graph.read_text())
            named = found.get("graph")
            if named != graph.name and isinstance(named, str):
                raise CorruptEntryError(f"{graph} is a copy of {named}", graph)
            if not isinstance(named, str) or not PROGRAM.fullmatch(found["program"]):
                return None
            calls = {str(name): int(count) for name, count in found["calls"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        if not self.readonly:
            with suppress(OSError):
                os.utime(graph)
        return GraphEntry(self.folder / found["program"], calls)

    def write_graph_entry(self, graph: Path, known: GraphEntry) -> int:
        """Store the entry of a graph; return the number of programs evicted. Raises OSError."""
        noted = {"graph": graph.name, "program": known.program.name, "calls": known.calls}
        return self.add_file(graph, json.dumps(noted).encode())

    def script_entry_path(self, command: Sequence[str], places: Sequence[jax.Device]) -> Path:
        """Return the path of the entry of a command line for these devices, whether or not it exists."""
        return self.folder / f"{_hash([*command, *_environment_key(places, with_handlers=False)])}.script"

    def read_script_entry(self, note: Path) -> list[str]:
        """Return the file names in the entry of a command line, in order of use; empty if it cannot be read."""
        try:
            names = json.loads(note.read_text())
        except (OSError, ValueError):
            return []
        if not isinstance(names, list) or not all(isinstance(n, str) and PROGRAM.fullmatch(n) for n in names):
            return []
        if not self.readonly:
            with suppress(OSError):
                os.utime(note)
        return names

    def write_script_entry(self, note: Path, names: Sequence[str]) -> int:
        """Store the entry of a command line; return the number of programs evicted. Raises OSError."""
        return self.add_file(note, json.dumps(list(names)).encode())

    def add_file(self, file: Path, data: bytes) -> int:
        """Write a file of the cache atomically; return the number of programs evicted. Raises OSError."""
        part = file.with_suffix(f".{uuid.uuid4().hex}")  # ids of processes are not unique between containers
        try:
            part.write_bytes(data)
            part.replace(file)  # atomic for concurrent readers
        finally:
            part.unlink(missing_ok=True)
        if self._room:
            return self._room.record_added(self.folder, len(data))
        _remove_leftovers(self.folder)
        return 0


def program_name(text: str, places: Sequence[jax.Device]) -> str | None:
    """Return the file name of a StableHLO program for these devices: the same in all processes that may share it.

    None for a program that is valid only in this process (host_calls.py).
    """
    if host_calls.is_tied_to_process(text):
        return None
    return f"{_hash([*_environment_key(places, cpu_kernel_call.PREFIX in text), text])}.xla"


def _environment_key(places: Sequence[jax.Device], with_handlers: bool = True) -> list[str]:
    """Return all that decides the executable of a StableHLO program on these devices.

    ``with_handlers``: include the version of the CPU kernel library, for a program that may call its kernels.
    """
    backend = places[0].client
    parts = [jax.__version__, jaxlib.__version__, backend.platform, backend.platform_version]
    parts += [f"{_identity(place, alone=len(places) == 1)} {place.device_kind}" for place in places]
    parts += ["" if backend.platform in _WITHOUT_HOST_CODE else _processor()]
    handlers = library.load_library() if with_handlers and capabilities.runs_in_process(places[0]) else None
    parts += [handlers.version if handlers else ""]
    parts += xla_flags.read().identity()
    return parts + [f"{name}={getattr(jax.config, name, '')}" for name in _OPTIONS]


def _identity(place: jax.Device, alone: bool) -> int:
    """Return the number of a device in the key: in a job, that of a program's only device is the one in its process."""
    if alone and replicas.process_count() > 1 and place.platform in _MOVABLE:
        local: int = place.client.local_devices().index(place)
        return local
    return int(place.id)


def _hash(parts: Sequence[str]) -> str:
    digest = hashlib.sha256(MAGIC)
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode(errors="surrogateescape"))  # a command line may hold any bytes
    return digest.hexdigest()


def _processor() -> str:
    """Return the instruction set extensions of the processor, which XLA compiles for."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
