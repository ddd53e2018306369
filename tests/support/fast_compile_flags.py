"""Sets XLA's flags for tests: fast compilation, no persistent cache. Import it before jax's backend starts."""

from __future__ import annotations

import importlib.metadata
import os

#: jaxlib aborts the process at an unknown flag: each flag with the first release that lacks it, if known.
#: LLVM's optimizations are most of a compilation and not under test. XLA's emitters of one fused kernel each
#: go through a pipeline of MLIR; its older emitters, which jaxlib has until 0.11.1, generate LLVM IR directly: a third
#: of the time. With a partition count above 1, each program is linked from several object files.
_KNOWN_BEFORE = {
    "--xla_backend_optimization_level=0": (),
    "--xla_cpu_use_fusion_emitters=false": (0, 11, 2),
    "--xla_cpu_parallel_codegen_split_count=1": (),
}


def flags(release: str) -> str:
    """Return the flags that the installed jaxlib supports."""
    patch = tuple(int(number) for number in release.split(".")[:3])
    return " ".join(flag for flag, gone in _KNOWN_BEFORE.items() if not gone or patch < gone)


FLAGS = flags(importlib.metadata.version("jaxlib"))

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault(
    "XLA_PERSISTENT_CACHE_PATH", ""
)  # tests count compilations, and must not depend on an earlier run
os.environ.setdefault("TORCH_XLA_COMPILE_POLICY", "compile")  # tests compile programs, except test_compile_policy.py
os.environ.setdefault("TORCH_XLA_TRACEBACK", "full")  # a failing test shows the frames of the engine
