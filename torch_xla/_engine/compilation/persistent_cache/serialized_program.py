"""Executables as bytes: the contents of a program file, and what the processes of a job send each other.

A program for one device may be loaded onto another device of its kind (``storage.program_key`` says which programs have
one key on several devices). Loading runs code from the bytes: they must come from a trusted file or from this job.

Built on ``jax.experimental.serialize_executable`` (checked on jax 0.10.2).
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import jaxlib
from jax.experimental import serialize_executable

from torch_xla._engine.compat import executables
from torch_xla._engine.compilation.persistent_cache.cache_files import pack, unpack


class CorruptEntryError(RuntimeError):
    """A file, or a message of another process, exists, but its contents cannot be loaded."""

    def __init__(self, message: str, file: Path | None = None) -> None:
        super().__init__(message)
        self.file = file


def pack_program(name: str, program: jax.stages.Compiled, places: Sequence[jax.Device]) -> bytes:
    """Return the contents of the program file ``name``. Raises jax's error if the backend cannot serialize it."""
    ids = [place.id for place in places]
    return pack(name, _describe(places), pickle.dumps((*serialize_executable.serialize(program), ids)))


def load_program(name: str, data: bytes, places: Sequence[jax.Device], source: str) -> jax.stages.Compiled:
    """Load the contents of the program file ``name`` onto devices.

    Raises CorruptEntryError, which names the ``source`` of the contents.
    """
    try:
        pickled = unpack(name, data)
    except ValueError as error:
        raise CorruptEntryError(f"{source} is damaged or was renamed: {error}") from error
    try:
        payload, in_tree, out_tree, ids = pickle.loads(pickled)
        executables.initialize_kernels(payload)
        if len(ids) == 1 and ids[0] != places[0].id:
            return executables.load_on_device(payload, in_tree, out_tree, ids[0], places[0])
        loaded: jax.stages.Compiled = serialize_executable.deserialize_and_load(
            payload, in_tree, out_tree, backend=places[0].client, execution_devices=places
        )
    except Exception as error:  # XLA, pickle and jax raise different types
        raise CorruptEntryError(f"{source}: {error}") from error
    return loaded


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
