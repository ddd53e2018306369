"""Builds the C++ recorder on first import, and other extensions on demand, in the user's cache folder.

    <cache>/recorder/<torch>-<python and platform>-<hash of sources and flags>/<compiler>/_torch_xla_recorder.so

A file at that path is a complete build: it is linked in a temporary folder and moved there atomically. The building
process holds an flock on the ``lock`` file beside it, which the kernel releases when the process dies.

A wheel may contain builds (``scripts/build_wheel.py``, ``python -m torch_xla.build --into-package``), in the folder
``builds`` beside the sources: see prebuilt.py. A matching one takes precedence, whichever compiler is installed; if it
cannot be loaded, the library is built as if the wheel had none.
"""

from __future__ import annotations

import fcntl
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
from torch_xla._engine.recorder import prebuilt
from torch_xla._engine.recorder.toolchain import (
    BuildJob,
    RecorderBuildError,
    compile_extension,
    compiler_fingerprint,
)

_SOURCES = Path(__file__).parent / "csrc"
_POLL = 0.1  # seconds between attempts to lock


@dataclass(frozen=True)
class Extension:
    """A C++ library: its name, the folder of its sources (\\*.cpp, \\*.h), and the cache folder of its builds.

    ``what`` is its name in messages. Unless ``is_module`` is False it is a Python module. ``includes`` are additional
    include folders; ``headers`` is a version that identifies their content. ``prebuilt``: use a build of the package.
    """

    name: str
    sources: Path
    cache: Path
    what: str = "recorder"
    is_module: bool = True
    includes: tuple[str, ...] = ()
    headers: str = ""
    prebuilt: bool = True

    def units(self) -> list[Path]:
        """Return the files to compile, sorted."""
        return engine_sources.list_files(self.sources, "*.cpp")

    def files(self) -> list[Path]:
        """Return all source files and headers, sorted."""
        return engine_sources.list_files(self.sources, "*.cpp", "*.h")

    def build_dir(self) -> Path:
        """Return the folder of all builds of these sources for this torch and Python. Raises RecorderBuildError."""
        # The suffix of extension modules names Python's version, build variant and platform.
        abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
        name = f"torch-{torch.__version__}-{abi}-{self.sources_digest(self.headers)}"
        return self.cache / self.what.replace(" ", "_") / name

    def sources_digest(self, headers: str = "") -> str:
        """Return a hash of the sources, the compiler's flags, and ``headers``. Raises RecorderBuildError."""
        try:
            return prebuilt.hash_sources(self.files(), headers)
        except OSError as error:
            advice = "A file of the package cannot be read: reinstall torch_xla."
            raise RecorderBuildError(f"torch_xla cannot build its {self.what}: {error}\n  {advice}") from error


def load_recorder() -> ModuleType:
    """Load the recorder; the first call on a machine builds it. Raises RecorderBuildError."""
    return load_extension(recorder_extension())


def recorder_extension() -> Extension:
    """Return the recorder's extension, with the user's cache folder."""
    return Extension("_torch_xla_recorder", _SOURCES, settings.cache_dir)


def load_extension(extension: Extension) -> ModuleType:
    """Import ``extension``, after building it if no build matches. Raises RecorderBuildError."""
    if extension.name in sys.modules:  # pybind11 types cannot be registered twice in a process
        return sys.modules[extension.name]
    library = build_or_find(extension)
    try:
        module = _import_file(extension.name, library)
    except ImportError as error:
        if not prebuilt.is_packaged(extension.sources, library):
            raise
        prebuilt.warn_of_failure(extension.what, library, error)
        module = _import_file(extension.name, build_or_find(replace(extension, prebuilt=False)))
    sys.modules[extension.name] = module
    return module


def _import_file(name: str, library: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec is not None and spec.loader is not None  # holds for every path that ends in .so
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def build_or_find(extension: Extension) -> Path:
    """Return the path of the library, after building it if no build matches. Raises RecorderBuildError."""
    what, packaged = extension.what, _find_packaged_build(extension) if extension.prebuilt else None
    if packaged is not None:
        return packaged
    errors: list[OSError] = []
    for cache in private_folder.cache_folders(extension.cache):
        try:
            library = _build_in_cache(replace(extension, cache=cache))
        except OSError as error:
            errors.append(error)
            continue
        if errors:
            _warn_of_fallback(what, errors[0], cache)
        return library
    advice = "Set TORCH_XLA_CACHE_DIR to a writable folder that you own."
    raise RecorderBuildError(f"torch_xla cannot store its {what}: {errors[0]}\n  {advice}") from errors[0]


def _warn_of_fallback(what: str, error: OSError, cache: Path) -> None:
    warnings.warn(
        f"torch_xla: cannot use the cache folder for the {what}: {error}. Stores it in {cache}. Set "
        "TORCH_XLA_CACHE_DIR to a folder that you own.",
        RuntimeWarning,
        stacklevel=2,
    )


def _build_in_cache(extension: Extension) -> Path:
    """Return the library in the extension's cache folder.

    Raises:
        RecorderBuildError: The build failed.
        OSError: The folder cannot be used.
    """
    stamps = engine_sources.stamp_files(extension.files())
    build_dir, compiler = extension.build_dir(), find_compiler()
    return _find_build(extension, build_dir, compiler) or _build_once(extension, build_dir, compiler, stamps)


def store_in_package(extension: Extension, library: Path) -> Path:
    """Copy a build beside the sources, to include it in a wheel; return its path."""
    copy = _in_package(extension) / library.parent.name / library.name
    if copy != library:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as part:
            part.write(library.read_bytes())
        os.chmod(part.name, 0o755)
        os.replace(part.name, copy)
    return copy


def _in_package(extension: Extension) -> Path:
    return (
        extension.sources.parent
        / prebuilt.FOLDER
        / prebuilt.folder_name(torch.__version__, prebuilt.abi_tag(extension.is_module), extension.sources_digest())
    )


def _find_packaged_build(extension: Extension) -> Path | None:
    """Return the build in the package, which is trusted like the package."""
    if not (extension.sources.parent / prebuilt.FOLDER).is_dir():
        return None
    found = sorted(_in_package(extension).glob(f"*/{extension.name}.so"))
    return found[0] if found else None


def _find_build(extension: Extension, build_dir: Path, compiler: list[str] | None) -> Path | None:
    """Return a complete build by this compiler; if no compiler is installed, a build by any compiler.

    Raises PermissionError if the folder is writable by other users.
    """
    name = f"{extension.name}.so"
    if compiler is None:
        candidates = sorted(build_dir.glob(f"*/{name}"))
    else:
        candidates = [build_dir / compiler_fingerprint(compiler) / name]
    for library in candidates:
        try:
            private_folder.check(library.parent, extension.cache)
        except FileNotFoundError:
            continue
        if private_folder.is_trusted_file(library):
            return library
    return None


def _build_once(
    extension: Extension, build_dir: Path, compiler: list[str] | None, stamps: dict[Path, tuple[int, ...] | None]
) -> Path:
    """Build the library, or wait for another process that builds it; return its path. Raises OSError."""
    private_folder.make(build_dir, extension.cache)
    if compiler is None:
        found = f"{missing_compiler_message()} was not found.\n  {INSTALL_COMPILER}"
        raise RecorderBuildError(f"torch_xla cannot build its {extension.what}: {found}")
    library = build_dir / compiler_fingerprint(compiler) / f"{extension.name}.so"
    private_folder.make(library.parent, extension.cache)
    with _lock(build_dir / "lock", extension.what) as lock:
        if not private_folder.is_trusted_file(library):
            units, what, includes = extension.units(), extension.what, (str(extension.sources), *extension.includes)
            compile_extension(BuildJob(units, library, what, extension.is_module, includes, stamps), compiler, lock)
    return library


@contextmanager
def _lock(path: Path, what: str) -> Iterator[int]:
    """Hold the lock on ``path``; yield its descriptor. Shows a status line while waiting."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        with StatusLine(f"waiting for another process that builds the {what}") as status:
            while not _try_lock(descriptor):
                status.show()
                time.sleep(_POLL)
        yield descriptor
    finally:
        # close() does not suffice: a process that another thread forked meanwhile would retain the lock.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
