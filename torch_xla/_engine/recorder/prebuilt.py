"""Builds inside the package: the names under which a wheel stores libraries for several torch and Python versions.

    builds/torch-2.13.0-cpython-311-x86_64-linux-gnu-<hash of sources and flags>/<compiler>/_torch_xla_recorder.so
    builds/torch-2.13.0-x86_64-linux-gnu-<hash of sources and flags>/<compiler>/_torch_xla_cpu_kernels.so

All builds of one torch release (for the CPU, for CUDA) have the same C++ interface and use the same library. Of a torch
that is not a release, only a build with exactly its version matches. A library that is not a Python module serves
every Python. jaxlib is not in the names: XLA runs kernels that were compiled with the headers of an older jaxlib.

Imports the standard library only, and fast: scripts/build_wheel.py and torch_xla_autoload load this file alone.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import re
import warnings
from collections.abc import Iterable
from pathlib import Path

#: The compiler's flags for all libraries.
FLAGS = ("-O2", "-std=c++20", "-fvisibility=hidden", "-fno-math-errno")

#: The folder of the builds, beside the sources.
FOLDER = "builds"

#: Local versions of the builds of a release, as in 2.13.0+cpu.
_VARIANT = r"\+(cpu|cu\d+|rocm[\d.]+|xpu)(\.cxx11\.abi)?$"


def hash_sources(files: Iterable[Path], headers: str = "") -> str:
    """Return a hash of the sources, the compiler's flags, and ``headers``. Raises OSError."""
    digest = hashlib.blake2b((" ".join(FLAGS) + headers).encode(), digest_size=8)
    for file in files:
        content = file.read_bytes()
        digest.update(f"\0{file.name}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def folder_name(torch_version: str, abi: str, digest: str) -> str:
    """Return the folder of a library for this torch. ``digest`` identifies its sources."""
    return f"torch-{re.sub(_VARIANT, '', torch_version)}-{abi}-{digest}"


def abi_tag(is_module: bool) -> str:
    """Return this Python's version, build variant and platform; of a library that is no module, the platform only."""
    tag = importlib.machinery.EXTENSION_SUFFIXES[0].split(".")[1]
    return tag if is_module else tag.split("-", 2)[2]


def is_packaged(sources: Path, library: Path) -> bool:
    """Return whether ``library`` is a build of the package with these sources."""
    return library.is_relative_to(sources.parent / FOLDER)


def warn_of_failure(what: str, library: Path, error: Exception) -> None:
    """Warn that a library of the package cannot be loaded and is built instead."""
    warnings.warn(
        f"torch_xla: the {what} of the package cannot be loaded and will be compiled: {error} ({library}). Report "
        "this, with the output of torch-xla doctor.",
        RuntimeWarning,
        stacklevel=2,
    )
