"""Loads the programs that this script used in its last run on a background thread, before the script needs them.

Loading executables takes a good part of the time to a first result (0.3 s for a small GPT). While Python builds a model
and records a step, another core is idle and can do it. The folder of programs has for each command line the list of the
programs that it uses first: ``<hash>.script``. A process with the same command line loads these programs in order, from
the first use of a device on.

Applies only to a script with a file, in a job of one process, on its first device. Programs that are loaded but not
used are dropped when the script uses a program that is not in the list, or has used the maximum number of programs of a
list.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import jax

from torch_xla._engine import recorder
from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.compilation.persistent_cache import graph_key
from torch_xla._engine.compilation.persistent_cache.storage import CacheFolder
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import capabilities
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.job import replicas

#: Maximum number of programs in a script's list, and maximum number of bytes to load.
_PROGRAMS, _BYTES = 8, 64 << 20

_NOTEBOOKS = ("ipykernel", "google.colab")  # their command line differs in every run

_log = logging.getLogger("torch_xla.compile")


class Prefetcher:
    """The programs of this process's script. One thread loads their files one after the other:

        waiting -> loading -> ready -> taken
           |          |         |
         taken        +---------+-> dropped

    ``take`` of a waiting file returns None: the caller loads it, on another core. ``take`` of a file that is loading
    blocks until it is ready. Nothing is raised: the caller reports files that cannot be loaded.
    """

    def __init__(self, files: CacheFolder, device: jax.Device, note: Path) -> None:
        self._files, self._device, self._note = files, device, note
        self._lock = fork_safe_lock()
        self._before = files.read_script_entry(note)  # the list that the last process wrote
        self._used: list[str] = []
        self._waiting = list(self._before)
        self._loading: tuple[str, threading.Event] | None = None
        self._ready: dict[str, jax.stages.Compiled] = {}
        self._is_over = False
        self._process = os.getpid()
        self._thread = threading.Thread(target=self._load, name="torch_xla_preloading", daemon=True)

    def start(self) -> None:
        """Start the thread, if there are programs to load and the process is not exiting."""
        with self._lock:
            if self._waiting:
                self._thread.start()

    def take(self, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """Return the program of a file for these devices; None if it is not loaded."""
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
        """Add a program that the script uses, and that is or will be in the folder, to its list. Raises OSError."""
        if not self._is_for(file, places) or len(self._used) >= _PROGRAMS or file.name in self._used:
            return
        self._used.append(file.name)
        if len(self._used) == _PROGRAMS:
            self.cancel()
        if self._used != self._before[: len(self._used)] and not self._files.readonly:
            self._files.write_script_entry(self._note, self._used)

    def cancel(self) -> None:
        """Stop loading and drop unused programs, as the script differs from its last run."""
        with self._lock:
            self._is_over = True
            self._waiting.clear()
            self._ready.clear()

    def shutdown(self) -> None:
        """Cancel, and wait for the thread. A later ``start`` starts nothing."""
        self.cancel()
        if os.getpid() == self._process and self._thread.ident is not None:
            self._thread.join()

    def _is_for(self, file: Path, places: Sequence[jax.Device]) -> bool:
        matches = file.parent == self._files.folder and list(places) == [self._device]
        return matches and os.getpid() == self._process

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
                _log.debug("%s: could not prefetch", name, exc_info=True)
            finally:
                self._loaded(name, found)

    def _read(self, file: Path) -> jax.stages.Compiled | None:
        graph_key.engine_fingerprint()  # slow to compute, and every new graph needs it
        if capabilities.runs_in_process(self._device):
            library.load_library()  # registers the CPU kernels that programs call
        with recorder.enable_x64():
            return self._files.read(file, [self._device])

    def _next(self) -> str | None:
        with self._lock:
            if not self._waiting:
                return None
            name = self._waiting.pop(0)
            self._loading = name, threading.Event()
            return name

    def _loaded(self, name: str, found: jax.stages.Compiled | None) -> None:
        with self._lock:
            loading, self._loading = self._loading, None
            if found is not None and not self._is_over:
                self._ready[name] = found
        if loading is not None:
            loading[1].set()


def for_current_script(files: CacheFolder, device: jax.Device) -> Prefetcher | None:
    """Return the Prefetcher of this process's command line; None for notebooks, interactive and multi-process jobs."""
    script = sys.argv[0] if sys.argv else ""
    if not os.path.isfile(script) or any(name in sys.modules for name in _NOTEBOOKS):
        return None
    if replicas.process_count() > 1 or replicas.is_spmd():
        return None
    return Prefetcher(files, device, files.script_entry_path([os.path.realpath(script), *sys.argv[1:]], [device]))
