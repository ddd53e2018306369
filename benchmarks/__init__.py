"""Benchmarks. Programs are compiled each time: what another run left on disk is not measured."""

import os

os.environ.setdefault("XLA_PERSISTENT_CACHE_PATH", "")
