"""Benchmarks of programs: each is compiled when it is new, and what another run left on disk is not measured."""

import os

os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")
os.environ.setdefault("TORCH_XLA_STORM", "compile")
os.environ.setdefault("TORCH_XLA_FIRST_RUN", "compile")
