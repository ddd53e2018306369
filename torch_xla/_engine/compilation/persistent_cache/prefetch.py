"""Programs that this script used the last time, loaded by a thread before it asks for them.

Loading an executable takes XLA a good part of the time to a first result (0.3 s for a small GPT), on a core that has
nothing else to do while Python builds a model and records a step. Which programs a command line uses first is noted in
the folder of programs: ``<hash>.script``. A process that runs the same one loads these, in their order, from when it
first uses a device, and runs those once that may be (warmup.py).

Only for a script with a file, in one process, on its first device; what is loaded and not asked for is dropped when the
script asks for something else, or has used as many programs as there may be in such a note.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compilation.persistent_cache import graph_key, warmup
from torch_xla._engine.compilation.persistent_cache.storage import CachedProgram, CacheFolder
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.job import replicas

#: So many programs of a script are noted, and so many bytes of them are loaded.
_PROGRAMS, _BYTES = 8, 64 << 20

_NOTEBOOKS = ("ipykernel", "google.colab")  # whose command line is another one each time

_log = logging.getLogger("torch_xla.compile")


class Prefetcher:
    """The programs of one process's script. Its files are loaded one after the other by one thread:

        waiting -> being loaded -> ready -> run once, if it is still there -> taken
           |            |            |                                  |
         taken          +-- dropped -+----------------------------------+

    ``take`` of a file that waits leaves loading it to the caller, who has the other core; that of one that is being
    loaded waits, that of one that is being run does not. Nothing is raised: what cannot be loaded is the caller's to
    report.
    """

    def __init__(self, files: CacheFolder, device: jax.Device, note: Path) -> None:
        self._files, self._device, self._note = files, device, note
        self._lock = fork_safe_lock()
        self._before = files.read_script_entry(note)  # what the last process noted
        self._used: list[str] = []
        self._waiting = list(self._before)
        self._loading: tuple[str, threading.Event] | None = None
        self._ready: dict[str, CachedProgram] = {}
        self._is_over = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._load, name="torch_xla_preloading", daemon=True)

    def start(self) -> None:
        """Begins to load, if there is anything."""
        if self._waiting:
            atexit.register(self.shutdown)
            self._thread.start()

    def take(self, file: Path, places: Sequence[jax.Device]) -> CachedProgram | None:
        """The program of a file for these devices; None for one that has not been loaded."""
        if not self._is_for(file, places):
            return None
        if file.name not in self._before:
            self.cancel()
            return None
        with self._lock:
            if file.name in self._waiting:
                self._waiting.remove(file.name)
            loading = self._loading
        if loading is not None and loading[0] == file.name:
            loading[1].wait()
        with self._lock:
            found = self._ready.pop(file.name, None)
        if found is not None:
            metrics.count("PersistentCachePrefetchHit")
        return found

    def record_use(self, file: Path, places: Sequence[jax.Device]) -> None:
        """The script has used a program that is in the folder now: notes it. Raises OSError."""
        if not self._is_for(file, places) or len(self._used) >= _PROGRAMS or file.name in self._used:
            return
        self._used.append(file.name)
        if len(self._used) == _PROGRAMS:
            self.cancel()
        if self._used != self._before[: len(self._used)] and not self._files.readonly:
            self._files.write_script_entry(self._note, self._used)

    def cancel(self) -> None:
        """Loads no more, and forgets what nobody has asked for: the script does something else than the last time."""
        with self._lock:
            self._is_over = True
            self._waiting.clear()
            self._ready.clear()

    def shutdown(self) -> None:
        """The same, and waits for the thread."""
        self.cancel()
        if os.getpid() == self._process:
            self._thread.join()

    def _is_for(self, file: Path, places: Sequence[jax.Device]) -> bool:
        mine = file.parent == self._files.folder and list(places) == [self._device]
        return mine and os.getpid() == self._process

    def _load(self) -> None:
        left = _BYTES
        while (name := self._next()) is not None:
            found = None
            try:
                file = self._files.folder / name
                left -= file.stat().st_size
                if left < 0:
                    with self._lock:
                        self._waiting.clear()
                else:
                    found = self._read(file)
            except Exception:
                _log.debug("%s: not loaded ahead", name, exc_info=True)
            finally:
                self._loaded(name, found)
            self._warm_up(name)

    def _read(self, file: Path) -> CachedProgram | None:
        graph_key.engine_fingerprint()  # takes a while to hash, and each new graph needs it
        if self._device.platform == "cpu":
            library.load_library()  # programs call its handlers by name
        with recorder.enable_x64():
            return self._files.read(file, [self._device])

    def _warm_up(self, name: str) -> None:
        with self._lock:
            found = self._ready.get(name)
        if found is not None and found.is_harmless:
            try:
                warmup.run_with_zeros(found.compiled, self._device)
            except Exception:
                _log.debug("%s: not run ahead", name, exc_info=True)

    def _next(self) -> str | None:
        with self._lock:
            if not self._waiting:
                return None
            name = self._waiting.pop(0)
            self._loading = name, threading.Event()
            return name

    def _loaded(self, name: str, found: CachedProgram | None) -> None:
        with self._lock:
            loading, self._loading = self._loading, None
            if found is not None and not self._is_over:
                self._ready[name] = found
        if loading is not None:
            loading[1].set()


def for_current_script(files: CacheFolder, device: jax.Device) -> Prefetcher | None:
    """That of this process's command line; None where it has none that comes again, and where several run together."""
    script = sys.argv[0] if sys.argv else ""
    if not os.path.isfile(script) or any(name in sys.modules for name in _NOTEBOOKS):
        return None
    if replicas.process_count() > 1 or replicas.is_spmd():
        return None
    return Prefetcher(files, device, files.script_entry_path([os.path.realpath(script), *sys.argv[1:]], [device]))
