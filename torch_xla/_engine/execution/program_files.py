"""A folder of compiled programs.

A file holds one executable. Its name is a hash of the program's StableHLO and of all else that decides what XLA makes
of it: the versions of jax, jaxlib, the backend and the handlers that it calls, devices, process, processor, flags. So
whatever changes a program (a dtype that is stored as another one, a precision, a rule of another release) changes the
name, and one folder serves all kinds of processes. Files appear whole or not at all, never change, and are not evicted.

Loading an executable runs what it says: only trusted users may be able to write to the folder.

Built on ``jax.experimental.serialize_executable`` (checked on jax 0.10.2). jax's own cache would not do: its folder is
process-wide jax configuration, which belongs to the user.
"""

from __future__ import annotations

import hashlib
import os
import pickle
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jaxlib
from jax.experimental import serialize_executable

from torch_xla._engine.handlers import library
from torch_xla._engine.lowering import on_cpu

_FORMAT = b"torch_xla program 1\n"

#: jax settings that change what XLA makes of a program, but not its StableHLO.
_OPTIONS = (
    "jax_disable_most_optimizations",
    "jax_exec_time_optimization_effort",
    "jax_memory_fitting_effort",
    "jax_memory_fitting_level",
    "jax_optimization_level",
)
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")

_CALLBACK = re.compile(r"custom_call @\w*callback")


class UnreadableError(RuntimeError):
    """A file is there, but what it holds cannot be loaded."""


@dataclass(frozen=True, slots=True)
class ProgramFiles:
    """The files of one folder, which exists. With ``readonly`` none is added."""

    folder: Path
    readonly: bool

    def file(self, lowered: jax.stages.Lowered, places: Sequence[jax.Device]) -> Path | None:
        """Where the executable of a program for these devices is kept, or would be.

        None for a program that calls back into Python: it holds addresses of this process.
        """
        text = lowered.as_text()
        return None if _CALLBACK.search(text) else self.folder / f"{_key(text, places)}.xla"

    def read(self, file: Path, places: Sequence[jax.Device]) -> jax.stages.Compiled | None:
        """The executable, loaded onto its devices; None if there is no such file. Raises UnreadableError."""
        try:
            data = file.read_bytes()
        except FileNotFoundError:
            return None
        start = len(_FORMAT) + hashlib.sha256().digest_size
        if data[:start] != _header(data[start:]):
            raise UnreadableError(f"{file} is damaged")
        try:
            payload, in_tree, out_tree = pickle.loads(data[start:])
            loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
                payload, in_tree, out_tree, backend=places[0].client, execution_devices=places
            )
        except Exception as error:  # XLA, pickle and jax each have their own
            raise UnreadableError(f"{file}: {error}") from error
        return loaded

    def write(self, file: Path, compiled: jax.stages.Compiled) -> None:
        """Adds a file. Raises OSError, and what jax raises where a backend cannot give its executables away."""
        data = pickle.dumps(serialize_executable.serialize(compiled))
        part = file.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        try:
            part.write_bytes(_header(data) + data)
            part.replace(file)  # at once, for processes that are reading
        finally:
            part.unlink(missing_ok=True)


def _header(data: bytes) -> bytes:
    return _FORMAT + hashlib.sha256(data).digest()


def _key(text: str, places: Sequence[jax.Device]) -> str:
    backend = places[0].client
    parts = [jax.__version__, jaxlib.__version__, backend.platform, backend.platform_version]
    parts += [f"{place.id} {place.device_kind}" for place in places]
    parts += [f"process {backend.process_index()}"]  # of several that run it together, each keeps its own
    parts += [_processor() if backend.platform == "cpu" else ""]
    handlers = library.load() if on_cpu.PREFIX in text else None
    parts += [handlers.version if handlers else ""]
    parts += [f"{name}={os.environ.get(name, '')}" for name in _FLAGS]
    parts += [f"{name}={getattr(jax.config, name, '')}" for name in _OPTIONS]
    digest = hashlib.sha256(_FORMAT)
    for part in (*parts, text):
        digest.update(f"{len(part)}:{part}".encode())
    return digest.hexdigest()


def _processor() -> str:
    """The instructions that the processor knows: XLA compiles for all of them."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
