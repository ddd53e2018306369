"""The library of handlers: built and loaded for the first program on a CPU, and known to XLA by name from then on.

A program that XLA compiled calls a handler by its name: the library is loaded before such a program is compiled, or
read from disk. Without it (there is no compiler, say) programs are XLA's own throughout: slower, and as right.
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
    """The handlers of this process. ``version`` changes with whatever they are compiled from."""

    version: str
    functions: ctypes.CDLL

    def set_thread_count(self, calls_python: bool) -> None:
        """From now on the handlers use as many threads as torch does for this one; for a program about to start."""
        self.functions.torch_xla_set_threads(torch.get_num_threads(), calls_python)


_library: KernelLibrary | bool | None = (
    None  # None until it is first asked for, then False (there is none) or the library
)
_lock = fork_safe_lock()


def load_library() -> KernelLibrary | None:
    """The handlers, built where they are not yet, and known to XLA. None where TORCH_XLA_CPU_KERNELS turns them off.

    None, and a warning once, where they cannot be built.
    """
    global _library
    with _lock:
        if _library is None:
            _library = settings.TORCH_XLA_CPU_KERNELS and (_load() or False)
        return _library if isinstance(_library, KernelLibrary) else None


@contextmanager
def kernels_enabled(platform: str) -> Iterator[tuple[KernelLibrary | None, Counter[str]]]:
    """In the block, programs that this thread lowers for a CPU may call handlers; which they do is counted by name."""
    found = load_library() if platform == "cpu" else None
    with cpu_kernel_call.cpu_kernels_enabled(found is not None) as called:
        yield found, called


def kernel_names() -> list[str]:
    """Of all handlers, without the prefix."""
    return sorted(name for file in _SOURCES.rglob("*.cpp") for name in _HANDLER.findall(file.read_text()))


def kernel_extension() -> Extension:
    """The handlers' sources, and the user's folder for their builds."""
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
            f"torch_xla: programs on the CPU do without torch's kernels, which makes some much slower: {error}\n"
            "  TORCH_XLA_CPU_KERNELS=0 says that this is meant",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return KernelLibrary(path.parent.parent.name, functions)  # the sources may have changed since
