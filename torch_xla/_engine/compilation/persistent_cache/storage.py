"""The folder of the persistent compilation cache: keys, reading, atomic writes and eviction.

A file holds one executable. Its name is a hash of the program's StableHLO and of all else that decides the executable:
the versions of jax, jaxlib, the backend and the CPU kernel library, devices, process, processor, flags. So anything
that changes a program (a storage dtype, a precision, a rule of another release) changes the name, and processes with
different settings share one folder. Files are written atomically and never change. With a size limit, the least
recently used files are evicted. Any number of processes may add, read and remove files concurrently.

cache_files.py lists the files and their formats.

Loading an executable runs code from it: only trusted users may have write access to the folder.

Built on ``jax.experimental.serialize_executable`` (checked on jax 0.10.2). jax's own cache is not used: its folder is
process-wide jax configuration, which belongs to the user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jaxlib
from jax.experimental import serialize_executable

from torch_xla._engine.base import host_calls, xla_flags
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compat import executables
from torch_xla._engine.compilation.persistent_cache.cache_files import (
    ENTRY,
    MAGIC,
    PARTIAL,
    PARTIAL_MAX_AGE,
    PROGRAM,
    pack,
    remove_file,
    scan_folder,
    unpack,
)
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import capabilities
from torch_xla._engine.lowering import cpu_kernel_call

#: Platforms whose executables contain no code for the host's processor. That of an unknown platform might.
_WITHOUT_HOST_CODE = ("cuda", "gpu", "rocm", "tpu")

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


class CorruptEntryError(RuntimeError):
    """A file exists, but its contents cannot be loaded."""

    def __init__(self, message: str, file: Path | None = None) -> None:
        super().__init__(message)
        self.file = file


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
        return None if host_calls.is_tied_to_process(text) else self.folder / f"{_key(text, places)}.xla"

    def read(self, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """Load a program onto its devices; None if the file does not exist. Raises CorruptEntryError."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        if not self.readonly:
            with suppress(OSError):
                os.utime(file)  # most recently used, evicted last
        try:
            pickled = unpack(file.name, data)
        except ValueError as error:
            raise CorruptEntryError(f"{file} is damaged or was renamed: {error}") from error
        try:
            payload, in_tree, out_tree = pickle.loads(pickled)
            executables.initialize_kernels(payload)
            loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
                payload, in_tree, out_tree, backend=places[0].client, execution_devices=places
            )
        except Exception as error:  # XLA, pickle and jax raise different types
            raise CorruptEntryError(f"{file}: {error}") from error
        return loaded

    def write(self, file: Path, program: jax.stages.Compiled, places: Sequence[jax.Device]) -> int:
        """Store a program; return the number of programs evicted.

        Raises OSError, and jax's error if the backend cannot serialize executables.
        """
        data = pickle.dumps(serialize_executable.serialize(program))
        return self._add(file, pack(file.name, _describe(places), data))

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
        return self._add(graph, json.dumps(noted).encode())

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
        return self._add(note, json.dumps(list(names)).encode())

    def _add(self, file: Path, data: bytes) -> int:
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


def _describe(places: Sequence[jax.Device]) -> dict[str, object]:
    """Return the description of a new program, which `torch-xla cache list` shows."""
    first = places[0]
    return {
        "created": int(time.time()),
        "platform": first.platform,
        "device": first.device_kind,
        "devices": len(places),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
    }


def _key(text: str, places: Sequence[jax.Device]) -> str:
    return _hash([*_environment_key(places, cpu_kernel_call.PREFIX in text), text])


def _environment_key(places: Sequence[jax.Device], with_handlers: bool = True) -> list[str]:
    """Return all that decides the executable of a StableHLO program on these devices.

    ``with_handlers``: include the version of the CPU kernel library, for a program that may call its kernels.
    """
    backend = places[0].client
    parts = [jax.__version__, jaxlib.__version__, backend.platform, backend.platform_version]
    parts += [f"{place.id} {place.device_kind}" for place in places]
    parts += [f"process {backend.process_index()}"]  # each process of a multi-process program stores its own executable
    parts += ["" if backend.platform in _WITHOUT_HOST_CODE else _processor()]
    handlers = library.load_library() if with_handlers and capabilities.runs_in_process(places[0]) else None
    parts += [handlers.version if handlers else ""]
    parts += xla_flags.read().identity()
    return parts + [f"{name}={getattr(jax.config, name, '')}" for name in _OPTIONS]


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
