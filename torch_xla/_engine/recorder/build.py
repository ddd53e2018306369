"""Compiles the C++ recorder on first import, and other libraries when asked, into the user's cache folder.

    <cache>/recorder/<torch>-<python and platform>-<hash of sources and flags>/<compiler>/_torch_xla_recorder.so

A file at that path is a complete build: it is linked elsewhere and moved there in one step. Whoever wants to build
holds a lock of the kernel's (flock) on the ``lock`` file beside it, so nothing stale stays when a process dies.

A wheel may bring builds of its own (``python -m torch_xla.build --into-package``), in the folder ``builds`` beside the
sources. One that fits is used before all others, whichever compiler there is.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType

import torch

from torch_xla._engine.base import engine_sources, private_folder
from torch_xla._engine.base.cxx_compiler import INSTALL_COMPILER, find_compiler, missing_compiler_message
from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.status_line import StatusLine
from torch_xla._engine.recorder.toolchain import (
    FLAGS,
    BuildJob,
    RecorderBuildError,
    compile_extension,
    compiler_fingerprint,
)

_SOURCES = Path(__file__).parent / "csrc"
_IN_PACKAGE = "builds"  # the folder beside csrc
_POLL = 0.1  # seconds between looks at the lock


@dataclass(frozen=True)
class Extension:
    """A library in C++: the folder of its sources (\\*.cpp, \\*.h), its name, and where builds are kept.

    ``what`` is how messages call it. It is a module of Python unless ``is_module`` is False. ``includes`` are further
    folders of headers, whose content ``headers`` tells by a version.
    """

    name: str
    sources: Path
    cache: Path
    what: str = "recorder"
    is_module: bool = True
    includes: tuple[str, ...] = ()
    headers: str = ""

    def units(self) -> list[Path]:
        """The files to compile, in a fixed order."""
        return engine_sources.list_files(self.sources, "*.cpp")

    def files(self) -> list[Path]:
        """All files that the library is made of, in a fixed order."""
        return engine_sources.list_files(self.sources, "*.cpp", "*.h")

    def build_dir(self) -> Path:
        """The folder of all builds of these sources for this torch and this Python. Raises RecorderBuildError."""
        digest = hashlib.blake2b((" ".join(FLAGS) + self.headers).encode(), digest_size=8)
        for file in self.files():
            content = self._read(file)
            digest.update(f"\0{file.name}\0{len(content)}\0".encode() + content)
        # The suffix of extension modules names Python's version, build variant and platform.
        abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
        return self.cache / self.what.replace(" ", "_") / f"torch-{torch.__version__}-{abi}-{digest.hexdigest()}"

    def _read(self, file: Path) -> bytes:
        try:
            return file.read_bytes()
        except OSError as error:
            advice = "A file of the package cannot be read: install torch_xla again."
            raise RecorderBuildError(f"torch_xla cannot build its {self.what}: {error}\n  {advice}") from error


def load_recorder() -> ModuleType:
    """The compiled recorder; the first call on a machine builds it. Raises RecorderBuildError."""
    return load_extension(recorder_extension())


def recorder_extension() -> Extension:
    """The recorder's sources, and the user's folder for its builds."""
    return Extension("_torch_xla_recorder", _SOURCES, settings.cache_dir)


def load_extension(extension: Extension) -> ModuleType:
    """Imports ``extension``, building it before where no build fits. Raises RecorderBuildError."""
    if extension.name in sys.modules:  # pybind11 types cannot be registered twice in a process
        return sys.modules[extension.name]
    library = build_or_find(extension)
    spec = importlib.util.spec_from_file_location(extension.name, library)
    assert spec is not None and spec.loader is not None  # true of every path that ends in .so
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[extension.name] = module
    return module


def build_or_find(extension: Extension) -> Path:
    """The library, built before where no build fits. Raises RecorderBuildError."""
    what, brought = extension.what, _find_packaged_build(extension)
    if brought is not None:
        return brought
    refused: list[OSError] = []
    for cache in private_folder.cache_folders(extension.cache):
        try:
            library = _build_in_cache(replace(extension, cache=cache))
        except OSError as error:
            refused.append(error)
            continue
        if refused:
            _warn_of_fallback(what, refused[0], cache)
        return library
    advice = "Set TORCH_XLA_CACHE_DIR to a folder that can be written to, and that is this user's."
    raise RecorderBuildError(f"torch_xla cannot store its {what}: {refused[0]}\n  {advice}") from refused[0]


def _warn_of_fallback(what: str, error: OSError, cache: Path) -> None:
    warnings.warn(
        f"torch_xla: cannot use the cache folder for the {what}: {error}. Stores it in {cache}. Set "
        "TORCH_XLA_CACHE_DIR to a folder that you own.",
        RuntimeWarning,
        stacklevel=2,
    )


def _build_in_cache(extension: Extension) -> Path:
    """The library in the extension's cache folder. Raises RecorderBuildError, and OSError where that cannot be used."""
    stamps = engine_sources.stamp_files(extension.files())
    home, compiler = extension.build_dir(), find_compiler()
    return _find_build(extension, home, compiler) or _build_once(extension, home, compiler, stamps)


def store_in_package(extension: Extension, library: Path) -> Path:
    """A copy of a build beside the sources, for a wheel that is made from them; its path."""
    copy = _in_package(extension, extension.build_dir()) / library.parent.name / library.name
    if copy != library:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as part:
            part.write(library.read_bytes())
        os.chmod(part.name, 0o755)
        os.replace(part.name, copy)
    return copy


def _in_package(extension: Extension, home: Path) -> Path:
    return extension.sources.parent / _IN_PACKAGE / home.name


def _find_packaged_build(extension: Extension) -> Path | None:
    """The build that the package brings, which is trusted as the package is."""
    found = sorted(_in_package(extension, extension.build_dir()).glob(f"*/{extension.name}.so"))
    return found[0] if found else None


def _find_build(extension: Extension, home: Path, compiler: list[str] | None) -> Path | None:
    """A complete build to use: this compiler's; or where no compiler is left, anyone's.

    Raises PermissionError where others may write to the folder.
    """
    name = f"{extension.name}.so"
    found = sorted(home.glob(f"*/{name}")) if compiler is None else [home / compiler_fingerprint(compiler) / name]
    for library in found:
        try:
            private_folder.check(library.parent, extension.cache)
        except FileNotFoundError:
            continue
        if private_folder.is_trusted_file(library):
            return library
    return None


def _build_once(
    extension: Extension, home: Path, compiler: list[str] | None, stamps: dict[Path, tuple[int, ...] | None]
) -> Path:
    """Builds, or waits for the process that does. Returns the path of the library. Raises OSError."""
    private_folder.make(home, extension.cache)
    if compiler is None:
        found = f"{missing_compiler_message()} was not found.\n  {INSTALL_COMPILER}"
        raise RecorderBuildError(f"torch_xla cannot build its {extension.what}: {found}")
    library = home / compiler_fingerprint(compiler) / f"{extension.name}.so"
    private_folder.make(library.parent, extension.cache)
    with _lock(home / "lock", extension.what) as lock:
        if not private_folder.is_trusted_file(library):
            units, what, includes = extension.units(), extension.what, (str(extension.sources), *extension.includes)
            compile_extension(BuildJob(units, library, what, extension.is_module, includes, stamps), compiler, lock)
    return library


@contextmanager
def _lock(path: Path, what: str) -> Iterator[int]:
    """Holds the lock on ``path`` for this process; gives its descriptor. Says so where it has to wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with StatusLine(f"waiting for another process that builds the {what}") as status:
            while not _try_lock(descriptor):
                status.show()
                time.sleep(_POLL)
        yield descriptor
    finally:
        # Not left to close(): a process forked meanwhile by another thread would keep the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
