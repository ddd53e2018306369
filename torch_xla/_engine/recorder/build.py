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
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import torch

from torch_xla._engine.base.compilers import INSTALL_COMPILER, find_compiler, missing
from torch_xla._engine.base.settings import settings
from torch_xla._engine.base.status_line import StatusLine
from torch_xla._engine.recorder.toolchain import (
    FLAGS,
    Job,
    RecorderBuildError,
    compile_extension,
    identity,
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
        return sorted(self.sources.glob("*.cpp"))

    def home(self) -> Path:
        """The folder of all builds of these sources for this torch and this Python."""
        digest = hashlib.blake2b((" ".join(FLAGS) + self.headers).encode(), digest_size=8)
        for file in sorted([*self.units(), *self.sources.glob("*.h")]):
            content = file.read_bytes()
            digest.update(f"\0{file.name}\0{len(content)}\0".encode() + content)
        # The suffix of extension modules names Python's version, build variant and platform.
        abi = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
        return self.cache / self.what.replace(" ", "_") / f"torch-{torch.__version__}-{abi}-{digest.hexdigest()}"


def load_recorder() -> ModuleType:
    """The compiled recorder; the first call on a machine builds it. Raises RecorderBuildError."""
    return load_extension(the_recorder())


def the_recorder() -> Extension:
    """The recorder's sources, and the user's folder for its builds."""
    return Extension("_torch_xla_recorder", _SOURCES, settings.cache_dir)


def load_extension(extension: Extension) -> ModuleType:
    """Imports ``extension``, building it before where no build fits. Raises RecorderBuildError."""
    if extension.name in sys.modules:  # pybind11 types cannot be registered twice in a process
        return sys.modules[extension.name]
    library = built(extension)
    spec = importlib.util.spec_from_file_location(extension.name, library)
    assert spec is not None and spec.loader is not None  # true of every path that ends in .so
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[extension.name] = module
    return module


def built(extension: Extension) -> Path:
    """The library, built before where no build fits. Raises RecorderBuildError."""
    home = extension.home()
    compiler = find_compiler()
    return _existing(extension, home, compiler) or _build_once(extension, home, compiler)


def store_in_package(extension: Extension, library: Path) -> Path:
    """A copy of a build beside the sources, for a wheel that is made from them; its path."""
    copy = _in_package(extension, extension.home()) / library.parent.name / library.name
    if copy != library:
        copy.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=copy.parent, delete=False) as part:
            part.write(library.read_bytes())
        os.chmod(part.name, 0o755)
        os.replace(part.name, copy)
    return copy


def _in_package(extension: Extension, home: Path) -> Path:
    return extension.sources.parent / _IN_PACKAGE / home.name


def _existing(extension: Extension, home: Path, compiler: list[str] | None) -> Path | None:
    """A complete build to use: one of the package; this compiler's; or where no compiler is left, anyone's."""
    brought = sorted(_in_package(extension, home).glob(f"*/{extension.name}.so"))
    if brought:
        return brought[0]
    if compiler is None:
        return next(iter(sorted(home.glob(f"*/{extension.name}.so"))), None)
    library = home / identity(compiler) / f"{extension.name}.so"
    return library if library.exists() else None


def _build_once(extension: Extension, home: Path, compiler: list[str] | None) -> Path:
    """Builds, or waits for the process that does. Returns the path of the library."""
    if compiler is None:
        found = f"{missing()} was not found.\n  {INSTALL_COMPILER}"
        raise RecorderBuildError(f"torch_xla cannot build its {extension.what}: {found}")
    library = home / identity(compiler) / f"{extension.name}.so"
    try:
        library.parent.mkdir(parents=True, exist_ok=True)
        with _lock(home / "lock", extension.what) as lock:
            if not library.exists():
                job = Job(extension.units(), library, extension.what, extension.is_module, extension.includes)
                compile_extension(job, compiler, lock)
    except OSError as error:
        advice = "Set TORCH_XLA_CACHE_DIR to a folder that can be written to."
        raise RecorderBuildError(f"torch_xla cannot store its {extension.what}: {error}\n  {advice}") from error
    return library


@contextmanager
def _lock(path: Path, what: str) -> Iterator[int]:
    """Holds the lock on ``path`` for this process; gives its descriptor. Says so where it has to wait."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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
