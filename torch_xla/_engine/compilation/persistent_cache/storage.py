"""A folder of compiled programs.

A file holds one executable. Its name is a hash of the program's StableHLO and of all else that decides what XLA makes
of it: the versions of jax, jaxlib, the backend and the handlers that it calls, devices, process, processor, flags. So
whatever changes a program (a dtype that is stored as another one, a precision, a rule of another release) changes the
name, and one folder serves all kinds of processes. Files appear whole or not at all, and never change. With a limit
those go that were not used for the longest time; any number of processes may add, read and remove at once.

    <hash>.xla      an executable, by its StableHLO
    <hash>.graph    which of these a recorded graph becomes, by its name (graph_key.py): so that it need not be traced
    <hash>.script   which of these a command line uses first (prefetch.py)

Loading an executable runs what it says: only trusted users may be able to write to the folder.

Built on ``jax.experimental.serialize_executable`` (checked on jax 0.10.2). jax's own cache would not do: its folder is
process-wide jax configuration, which belongs to the user.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import pickle
import re
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import jax
import jaxlib
from jax.experimental import serialize_executable

from torch_xla._engine.base import host_calls, xla_flags
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compat import executables
from torch_xla._engine.compilation.persistent_cache import warmup
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.lowering import cpu_kernel_call

_FORMAT = b"torch_xla program 3\n"

#: jax settings that change what XLA makes of a program, but not its StableHLO.
_OPTIONS = (
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)

#: Of a folder with a limit: looking through more of them takes longer than compiling one.
MOST_FILES = 20_000
_PART_LIVES = 3600.0  # seconds: a file that has not been completed by then never will be

# What is ours in a folder that the user may have named: programs, and those that a process is writing.
_PROGRAM = re.compile(r"[0-9a-f]{64}\.xla")
_KEPT = re.compile(r"[0-9a-f]{64}\.(xla|graph|script)")
_PART = re.compile(r"[0-9a-f]{64}\.\d+\.\d+")


class CorruptEntryError(RuntimeError):
    """A file is there, but what it holds cannot be loaded."""


class CacheEvictor:
    """How much a folder may hold. One for each folder that this process adds files to.

    added files -> looked through, by the first one and then after each hundredth of the limit -> the oldest removed
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = fork_safe_lock()
        self._left = 0  # bytes and files that may be added before the next look
        self._files_left = 0

    def record_added(self, folder: Path, size: int) -> int:
        """Makes room after a file was added. Returns how many programs were removed."""
        with self._lock:
            self._left -= size
            self._files_left -= 1
            if self._left > 0 and self._files_left > 0:
                return 0
            self._left, self._files_left = self.limit // 100, MOST_FILES // 100
            return self._evict(folder)

    def _evict(self, folder: Path) -> int:
        now = time.time()
        kept: list[tuple[float, int, str]] = []
        for entry, info in _entries(folder):
            if _KEPT.fullmatch(entry.name):
                kept.append((info.st_mtime, info.st_size, entry.path))
            elif _PART.fullmatch(entry.name) and now - info.st_mtime > _PART_LIVES:
                _remove(entry.path)
        size = sum(found[1] for found in kept)
        if size <= self.limit and len(kept) <= MOST_FILES:
            return 0
        kept.sort(reverse=True)
        programs = 0
        while kept and (size > 0.9 * self.limit or len(kept) > 0.9 * MOST_FILES):
            _, freed, path = kept.pop()
            size -= freed
            programs += path.endswith(".xla")
            _remove(path)
        return programs


@functools.cache
def _remove_leftovers(folder: Path) -> None:
    """Remove what killed processes were writing to a folder without a limit; once in a process."""
    now = time.time()
    for entry, info in _entries(folder):
        if _PART.fullmatch(entry.name) and now - info.st_mtime > _PART_LIVES:
            _remove(entry.path)


def _entries(folder: Path) -> Iterator[tuple[os.DirEntry[str], os.stat_result]]:
    """The files of a folder, those left out that another process removes meanwhile."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield entry, entry.stat()


def _remove(path: str) -> None:
    with suppress(OSError):  # another process was faster, or will try again
        os.unlink(path)


@dataclass(frozen=True, slots=True)
class GraphEntry:
    """What is known of a graph that was compiled before: the file of its program, and the handlers that it calls."""

    program: Path
    calls: dict[str, int]


@dataclass(frozen=True, slots=True)
class CachedProgram:
    """A program from a file, and whether it is harmless (warmup.py)."""

    compiled: jax.stages.Compiled
    is_harmless: bool


@dataclass(frozen=True, slots=True)
class CacheFolder:
    """The files of one folder, which exists. With ``readonly`` none is added. ``limit``: bytes that it may hold."""

    folder: Path
    readonly: bool
    limit: int | None = None
    _room: CacheEvictor | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_room", CacheEvictor(self.limit) if self.limit else None)

    def size(self) -> int:
        """Bytes of all programs in the folder."""
        return sum(info.st_size for entry, info in _entries(self.folder) if _PROGRAM.fullmatch(entry.name))

    def executable_path(self, text: str, places: Sequence[jax.Device]) -> Path | None:
        """Where the executable of a program, by its StableHLO, for these devices is kept, or would be.

        None for a program that means something only in this process (host_calls.py).
        """
        return None if host_calls.is_tied_to_process(text) else self.folder / f"{_key(text, places)}.xla"

    def read(self, file: Path, places: Sequence[jax.Device]) -> CachedProgram | None:
        """The program, loaded onto its devices; None if there is no such file. Raises UnreadableError."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        if not self.readonly:
            with suppress(OSError):
                os.utime(file)  # used just now: to be removed last
        start = len(_FORMAT) + hashlib.sha256().digest_size
        if data[:start] != _header(file.name, data[start:]):
            raise CorruptEntryError(f"{file} is damaged, or is not what its name says")
        try:
            payload, in_tree, out_tree, is_harmless = pickle.loads(data[start:])
            executables.initialize_kernels(payload)
            loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
                payload, in_tree, out_tree, backend=places[0].client, execution_devices=places
            )
        except Exception as error:  # XLA, pickle and jax each have their own
            raise CorruptEntryError(f"{file}: {error}") from error
        return CachedProgram(loaded, is_harmless)

    def write(self, file: Path, compiled: jax.stages.Compiled, places: Sequence[jax.Device]) -> int:
        """Adds a file; returns how many went to make room for it.

        Raises OSError, and what jax raises where a backend cannot give its executables away.
        """
        is_harmless = warmup.is_safe_to_run(compiled, places[0].platform)
        data = pickle.dumps((*serialize_executable.serialize(compiled), is_harmless))
        return self._add(file, _header(file.name, data) + data)

    def graph_entry_path(self, name: str, places: Sequence[jax.Device]) -> Path:
        """Where it is noted, or would be, which program a graph of that name becomes on these devices."""
        return self.folder / f"{_hash([name, *_environment_key(places)])}.graph"

    def read_graph_entry(self, graph: Path) -> GraphEntry | None:
        """Return the note of a graph; None if there is none or it cannot be parsed.

        Raises UnreadableError for the note of another graph.
        """
        try:
            found = json.loads(graph.read_text())
            named = found.get("graph")
            if named != graph.name and isinstance(named, str):
                raise CorruptEntryError(f"{graph} holds what belongs to {named}")
            if not isinstance(named, str) or not _PROGRAM.fullmatch(found["program"]):
                return None
            calls = {str(name): int(count) for name, count in found["calls"].items()}
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        if not self.readonly:
            with suppress(OSError):
                os.utime(graph)
        return GraphEntry(self.folder / found["program"], calls)

    def write_graph_entry(self, graph: Path, known: GraphEntry) -> int:
        """Notes what a graph becomes; returns how many programs went to make room for it. Raises OSError."""
        noted = {"graph": graph.name, "program": known.program.name, "calls": known.calls}
        return self._add(graph, json.dumps(noted).encode())

    def script_entry_path(self, command: Sequence[str], places: Sequence[jax.Device]) -> Path:
        """Where it is noted, or would be, which programs a command line uses first on these devices."""
        return self.folder / f"{_hash([*command, *_environment_key(places, with_handlers=False)])}.script"

    def read_script_entry(self, note: Path) -> list[str]:
        """The names of the files noted there, in the order of their use; none where there is nothing to read."""
        try:
            names = json.loads(note.read_text())
        except (OSError, ValueError):
            return []
        if not isinstance(names, list) or not all(isinstance(n, str) and _PROGRAM.fullmatch(n) for n in names):
            return []
        if not self.readonly:
            with suppress(OSError):
                os.utime(note)
        return names

    def write_script_entry(self, note: Path, names: Sequence[str]) -> int:
        """Notes what a command line uses; returns how many programs went to make room for it. Raises OSError."""
        return self._add(note, json.dumps(list(names)).encode())

    def _add(self, file: Path, data: bytes) -> int:
        part = file.with_suffix(f".{uuid.uuid4().hex}")  # ids of processes are not unique between containers
        try:
            part.write_bytes(data)
            part.replace(file)  # at once, for processes that are reading
        finally:
            part.unlink(missing_ok=True)
        if self._room:
            return self._room.record_added(self.folder, len(data))
        _remove_leftovers(self.folder)
        return 0


def _header(name: str, data: bytes) -> bytes:
    """The name counts, so that a file that is copied or renamed to another name is refused."""
    return _FORMAT + hashlib.sha256(f"{name}\0".encode() + data).digest()


def _key(text: str, places: Sequence[jax.Device]) -> str:
    return _hash([*_environment_key(places, cpu_kernel_call.PREFIX in text), text])


def _environment_key(places: Sequence[jax.Device], with_handlers: bool = True) -> list[str]:
    """All that decides what XLA makes of a StableHLO on these devices; with which handlers, if it may call some."""
    backend = places[0].client
    parts = [jax.__version__, jaxlib.__version__, backend.platform, backend.platform_version]
    parts += [f"{place.id} {place.device_kind}" for place in places]
    parts += [f"process {backend.process_index()}"]  # of several that run it together, each keeps its own
    parts += [_processor() if backend.platform == "cpu" else ""]
    handlers = library.load_library() if with_handlers and backend.platform == "cpu" else None
    parts += [handlers.version if handlers else ""]
    parts += xla_flags.read().identity()
    return parts + [f"{name}={getattr(jax.config, name, '')}" for name in _OPTIONS]


def _hash(parts: Sequence[str]) -> str:
    digest = hashlib.sha256(_FORMAT)
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode(errors="surrogateescape"))  # a command line may hold any bytes
    return digest.hexdigest()


def _processor() -> str:
    """The instructions that the processor knows: XLA compiles for all of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
