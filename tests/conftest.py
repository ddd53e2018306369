"""Every test starts from a cut graph and the same seed; programs are compiled quickly rather than well."""

from __future__ import annotations

import os

# LLVM's optimizations are most of a compilation and none of what is tested. Read when jax starts its backend.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import pytest
import torch

import torch_xla
from torch_xla._engine.diagnostics.recompilation import watcher
from torch_xla._engine.execution import programs


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing pending from the test before, no optimizer without its barrier, no lines captured, seed 0."""
    torch_xla.sync()
    watcher.calm_down()  # an unexpected compilation in the test before has their capture on for 100 steps
    torch.manual_seed(0)


@pytest.fixture
def cold() -> None:
    """No program compiled by tests before, whichever these were: for tests that count compilations."""
    programs.cache.clear()
