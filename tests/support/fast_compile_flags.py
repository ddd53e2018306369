"""How programs are compiled in tests: quickly rather than well, and each time. Imported before jax's backend starts."""

from __future__ import annotations

import importlib.metadata
import os

#: jaxlib ends the process at a flag that it does not know: each with the first release that lacks it, as far as known.
#: LLVM's optimizations are most of a compilation and none of what is tested. XLA's emitters of one fused kernel each
#: go through a pipeline of MLIR; its older ones, which jaxlib has until 0.11, write LLVM's code at once: a third of the
#: time. With more than one part, each program is linked from several.
_KNOWN_BEFORE = {
    "--xla_backend_optimization_level=0": (),
    "--xla_cpu_use_fusion_emitters=false": (0, 12),
    "--xla_cpu_parallel_codegen_split_count=1": (),
}


def flags(release: str) -> str:
    """What of it this release of jaxlib knows."""
    minor = tuple(int(number) for number in release.split(".")[:2])
    return " ".join(flag for flag, gone in _KNOWN_BEFORE.items() if not gone or minor < gone)


FLAGS = flags(importlib.metadata.version("jaxlib"))

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")  # tests count compilations, and leave nothing to the next run
os.environ.setdefault("TORCH_XLA_STORM", "compile")  # tests are of programs, but for test_compile_policy.py
os.environ.setdefault("TORCH_XLA_FIRST_RUN", "compile")
