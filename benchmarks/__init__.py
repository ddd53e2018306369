"""Benchmarks of programs: each is compiled when it is new, and what another run left on disk is not measured."""

import os

os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")
os.environ.setdefault("TORCH_XLA_COMPILE_POLICY", "compile")
for name in ("TORCH_XLA_STORM", "TORCH_XLA_FIRST_RUN"):  # the same for older trees that --against measures
    os.environ.setdefault(name, "compile")
