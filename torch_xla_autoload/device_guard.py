"""Load the library that loads torch_xla when C++ code of torch asks for the device xla, as ``.to("xla")`` does.

torch_xla builds it with the recorder, in the cache folder; a wheel contains it. Without it, factories
(``torch.ones(3, device="xla")``), torch.accelerator and torch.xla load torch_xla all the same.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch

from torch_xla_autoload import loading

NAME = "_torch_xla_device_guard"
#: Its name in messages, and of its folder in the cache.
WHAT = "device guard"
SOURCES = Path(__file__).parent / "csrc"
_PREBUILT = SOURCES.parents[1] / "torch_xla" / "_engine" / "recorder" / "prebuilt.py"
_LOADER = ctypes.CFUNCTYPE(ctypes.c_void_p)  # a string; c_char_p as the result of a callback warns of a leak

#: Objects that the library refers to.
_referenced: list[object] = []


def load_library() -> None:
    """Load the library if it has been built for this torch."""
    for path in find_libraries():
        try:
            library = ctypes.CDLL(str(path))
        except OSError:  # torch_xla warns of it, and builds the library again
            continue
        loader = _LOADER(_load)
        library.torch_xla_set_loader(loader)
        _referenced[:] = [library, loader]
        return


def _load() -> int | None:
    """Load torch_xla for the library; return the address of an error message, or None."""
    try:
        loading.load()
    except BaseException as error:
        message = ctypes.create_string_buffer(f"torch_xla cannot be loaded: {error}".encode())
        _referenced[2:] = [message]
        return ctypes.addressof(message)
    return None


def find_libraries() -> Iterator[Path]:
    """Yield the builds for this torch: in the package, then in the cache."""
    prebuilt = _load_file(_PREBUILT)
    try:
        digest = prebuilt.hash_sources([SOURCES / "device_guard.cpp"])
    except OSError:
        return
    abi = prebuilt.abi_tag(True)
    packaged = SOURCES.parent / prebuilt.FOLDER
    if packaged.is_dir():
        folder = prebuilt.folder_name(torch.__version__, prebuilt.abi_tag(False), digest)
        yield from sorted(packaged.glob(f"{folder}/*/{NAME}.so"))
    cache = cache_dir()
    built = cache / WHAT.replace(" ", "_") / f"torch-{torch.__version__}-{abi}-{digest}"
    yield from (path for path in sorted(built.glob(f"*/{NAME}.so")) if _is_trusted(path, cache))


def _load_file(path: Path) -> ModuleType:
    # By path: importing a module of torch_xla would import the package.
    spec = importlib.util.spec_from_file_location("torch_xla_autoload._prebuilt", path)
    assert spec is not None and spec.loader is not None  # holds for every path that ends in .py
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cache_dir() -> Path:
    """Return the cache folder of torch_xla's settings."""
    named = os.environ.get("TORCH_XLA_CACHE_DIR")
    if named:
        return Path(named).expanduser()
    try:
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "torch_xla"
    except RuntimeError:  # a user without a home
        return Path(tempfile.gettempdir()) / f"torch_xla-{os.geteuid()}"


def _is_trusted(path: Path, cache: Path) -> bool:
    """Whether only this user and root can have written a file and its folders below the cache folder."""
    parents = [parent for parent in path.parents if parent.is_relative_to(cache)]
    for part in [path, *parents]:
        found = part.stat()
        if found.st_uid not in (os.geteuid(), 0) or (part != cache and found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
            return False
    return True
