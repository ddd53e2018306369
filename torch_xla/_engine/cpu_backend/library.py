"""The CPU kernel library: builds and loads it for the first CPU program, and registers its kernels with XLA.

A compiled program calls a kernel by name, so the library is loaded before such a program is compiled or read from disk.
Without the library (for example, without a C++ compiler) programs use XLA's own kernels: slower, but correct.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import jax
import jaxlib
import torch

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.recorder.build import Extension, build_or_find
from torch_xla._engine.recorder.toolchain import RecorderBuildError

_SOURCES = Path(__file__).parent / "csrc"
_HANDLER = re.compile(r"^TORCH_XLA_HANDLER(?:_OF)?\((\w+),", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The loaded kernels of this process. ``version`` identifies the sources they are built from."""

    version: str
    functions: ctypes.CDLL

    def set_thread_count(self, calls_python: bool) -> None:
        """Set the kernels' thread count to torch's for this thread. Call it before launching a program."""
        self.functions.torch_xla_set_threads(torch.get_num_threads(), calls_python)

    def foreach_opcodes(self) -> dict[str, int]:
        """Return the opcodes of foreach programs by name, as defined in csrc/kernels/foreach_program.cpp."""
        names = self.functions.torch_xla_foreach_opcodes
        names.restype = ctypes.c_char_p
        return {name: opcode for opcode, name in enumerate(names().decode().rstrip(",").split(","))}


_library: KernelLibrary | bool | None = None  # None until the first load; False if there is no library
_lock = fork_safe_lock()


def load_library() -> KernelLibrary | None:
    """Return the kernel library, built on first use and registered with XLA.

    Returns None if TORCH_XLA_CPU_KERNELS=0, or, after one warning, if the build failed.
    """
    global _library
    with _lock:
        if _library is None:
            _library = settings.TORCH_XLA_CPU_KERNELS and (_load() or False)
        return _library if isinstance(_library, KernelLibrary) else None


@contextmanager
def kernels_enabled(platform: str) -> Iterator[tuple[KernelLibrary | None, Counter[str]]]:
    """Allow CPU programs that this thread lowers in the block to call kernels.

    Yields the library and a counter of the called kernels by name.
    """
    found = load_library() if platform == "cpu" else None
    with cpu_kernel_call.cpu_kernels_enabled(found is not None) as called:
        yield found, called


def kernel_names() -> list[str]:
    """Return the names of all kernels, without the prefix."""
    return sorted(name for file in _SOURCES.rglob("*.cpp") for name in _HANDLER.findall(file.read_text()))


def kernel_extension() -> Extension:
    """Return the kernels' extension, with the user's cache folder."""
    return Extension(
        "_torch_xla_cpu_kernels",
        _SOURCES,
        settings.cache_dir,
        what="CPU kernels",
        is_module=False,
        includes=(jax.ffi.include_dir(),),
        headers=f"jaxlib {jaxlib.__version__}",
    )


def _load() -> KernelLibrary | None:
    extension = kernel_extension()
    try:
        path = build_or_find(extension)
        functions = ctypes.CDLL(str(path))
        for name in kernel_names():
            target = cpu_kernel_call.PREFIX + name
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(functions, target)), platform="cpu")
    except (RecorderBuildError, OSError, AttributeError, jax.errors.JaxRuntimeError) as error:
        warnings.warn(
            f"torch_xla: could not load ATen's CPU kernels; some CPU programs will be much slower: {error}\n"
            "  set TORCH_XLA_CPU_KERNELS=0 to silence this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return KernelLibrary(path.parent.parent.name, functions)  # not extension.build_dir(): the sources may have changed
