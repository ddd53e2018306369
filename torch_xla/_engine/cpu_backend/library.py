"""The CPU kernel library: found or built at import, loaded for the first CPU program, which registers its kernels.

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
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jaxlib

from torch_xla._engine.base.fork_safe_lock import fork_safe_lock
from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import capabilities, cpu_threads, hardware_detection
from torch_xla._engine.lowering import cpu_kernel_call
from torch_xla._engine.recorder import prebuilt
from torch_xla._engine.recorder.build import Extension, build_or_find
from torch_xla._engine.recorder.toolchain import RecorderBuildError

_SOURCES = Path(__file__).parent / "csrc"
_NOT_LOADED = (OSError, AttributeError, jax.errors.JaxRuntimeError)  # another torch, another interface of XLA
_HANDLER = re.compile(r"^TORCH_XLA_HANDLER(?:_OF)?\((\w+),", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """The loaded kernels of this process. ``version`` identifies the sources they are built from."""

    version: str
    functions: ctypes.CDLL

    def set_thread_count(self) -> None:
        """Set the kernels' thread count: call it before each launch."""
        cpu_threads.leave_inherited_team()
        self.functions.torch_xla_set_threads(cpu_threads.kernel_threads())

    def foreach_opcodes(self) -> dict[str, int]:
        """Return the opcodes of foreach programs by name, as defined in csrc/kernels/foreach_program.cpp."""
        names = self.functions.torch_xla_foreach_opcodes
        names.restype = ctypes.c_char_p
        return {name: opcode for opcode, name in enumerate(names().decode().rstrip(",").split(","))}


_library: KernelLibrary | bool | None = None  # None until the first load; False if there is no library
_located: Path | RecorderBuildError | None = None  # where locate_library found it, or why it could not be built
_lock = fork_safe_lock()


def locate_library() -> None:
    """Find the library or build it, if this process will use CPU devices. Neither loads it nor starts a backend.

    Import calls it, so that no build interrupts a training run. If the build fails, the first CPU
    program warns.
    """
    global _located
    with settings.uncached():
        if not settings.TORCH_XLA_CPU_KERNELS or not _will_use_cpu():
            return
    with _lock:
        try:
            _located = _located or build_or_find(kernel_extension())
        except RecorderBuildError as error:
            _located = error


def _will_use_cpu() -> bool:
    try:
        return hardware_detection.detect_device_type() == "CPU"
    except (ValueError, RuntimeError):  # a wrong configuration of devices: the first use of a device raises it
        return False


def load_library() -> KernelLibrary | None:
    """Return the kernel library, registered with XLA on first use; built before, unless locate_library found it.

    Returns None if TORCH_XLA_CPU_KERNELS=0, or, after one warning, if the build failed.
    """
    global _library
    with _lock:
        if _library is None:
            _library = settings.TORCH_XLA_CPU_KERNELS and (_load() or False)
        return _library if isinstance(_library, KernelLibrary) else None


@contextmanager
def kernels_enabled(device: jax.Device | None) -> Iterator[tuple[KernelLibrary | None, Counter[str]]]:
    """Allow programs that this thread lowers for a CPU device of jaxlib in the block to call kernels.

    Yields the library and a counter of the called kernels by name.
    """
    found = load_library() if device is not None and capabilities.runs_in_process(device) else None
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
        path = _located or build_or_find(extension)
        if isinstance(path, RecorderBuildError):
            raise path
        try:
            return _register(path)
        except _NOT_LOADED as error:
            if not prebuilt.is_packaged(extension.sources, path):
                raise
            prebuilt.warn_of_failure(extension.what, path, error)
            return _register(build_or_find(replace(extension, prebuilt=False)))
    except (RecorderBuildError, *_NOT_LOADED) as error:
        warnings.warn(
            f"torch_xla: could not load ATen's CPU kernels; some CPU programs will be much slower: {error}\n"
            "  set TORCH_XLA_CPU_KERNELS=0 to silence this warning",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def _register(path: Path) -> KernelLibrary:
    """Load the library and register its kernels with XLA. Raises one of _NOT_LOADED."""
    functions = ctypes.CDLL(str(path))
    for name in kernel_names():
        target = cpu_kernel_call.PREFIX + name
        jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(getattr(functions, target)), platform="cpu")
    return KernelLibrary(path.parent.parent.name, functions)  # not extension.build_dir(): the sources may have changed
