"""The folder of a plan's results: one file per combination, so that an interrupted plan resumes.

    key: script, arguments, target, steps, environment and versions ──► KEY.json: result, and the sources that it used

A result is used again as long as every source file that the script imported, and that is not an installed package, has
the same contents.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

from torch_xla._engine.base import atomic_file, private_folder
from torch_xla._engine.base.settings import settings
from torch_xla._version import __version__

_PACKAGES = ("torch", "jax", "jaxlib", "libtpu", "jax-cuda12-plugin", "jax-cuda13-plugin")
#: Prefixes of environment variables that may change the programs of a script.
_PREFIXES = ("XLA_", "TORCH_XLA_", "TORCH_", "PJRT_", "JAX_", "LIBTPU_", "TPU_", "USE_")
#: Variables with these prefixes that change none.
_UNRELATED = ("TORCH_XLA_CACHE_DIR", "XLA_PERSISTENT_CACHE_PATH", "XLA_METRICS_FILE")


class ResultStore:
    """Owns no open files: each method reads or replaces one file of the folder."""

    def __init__(self, folder: Path | None) -> None:
        """Use a folder of the user, or the default one below the cache folder, which is private."""
        self._is_default = folder is None
        self.folder = folder or settings.cache_dir / "plans"

    def load(self, key: str) -> dict[str, Any] | None:
        """Return a stored result; None without one, or if a source file has changed since."""
        try:
            found: dict[str, Any] = json.loads(self._path(key).read_text(encoding="utf-8"))
            return found if hash_files(found["sources"]) == found["sources"] else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def save(self, key: str, result: Mapping[str, Any]) -> None:
        """Store a result. Raises OSError if the folder cannot be written."""
        if self._is_default:
            private_folder.make(self.folder, settings.cache_dir)
        else:
            private_folder.make_readable(self.folder)
        with atomic_file.atomic_write(self._path(key)) as file:
            file.write(json.dumps(result).encode())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def make_key(command: Sequence[str]) -> str:
    """Return the key of a result: ``command`` (target, steps, script, arguments), folder, variables and versions."""
    versions = {"torch_xla": __version__, "python": sys.version}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    variables = {
        name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) and name not in _UNRELATED
    }
    text = json.dumps([list(command), os.getcwd(), variables, versions], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def hash_files(paths: Iterable[str]) -> dict[str, str]:
    """Return the SHA-256 of each file; empty for a file that cannot be read."""
    found = {}
    for path in paths:
        try:
            found[path] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
        except OSError:
            found[path] = ""
    return found
