"""How programs are compiled in tests: quickly rather than well, and each time. Imported before jax's backend starts."""

from __future__ import annotations

import os

#: LLVM's optimizations are most of a compilation and none of what is tested. XLA's emitters of one fused kernel each
#: go through a pipeline of MLIR; its older ones, which it keeps, write LLVM's code at once: a third of the time. With
#: more than one part, each program is linked from several.
FLAGS = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
)

os.environ.setdefault("XLA_FLAGS", FLAGS)
os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")  # tests count compilations, and leave nothing to the next run
os.environ.setdefault("TORCH_XLA_STORM", "compile")  # tests are of programs, but for test_storms.py
os.environ.setdefault("TORCH_XLA_FIRST_RUN", "compile")
