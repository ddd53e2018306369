"""Gives every test an empty graph and the same seed, and compiles programs without optimizations."""

from __future__ import annotations

import gc
import os

# One worker runs per core: a second torch thread waits for work by spinning and takes time from the other worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Importing scikit-learn sets it, too (for the digits dataset). The fork server (fork_server.py) cannot fork for a
# client whose OpenMP variables differ from its own, and a new interpreter takes seconds.
os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")

# Unbuffered, a print writes its text and the end of the line separately: lines of several processes would mix.
os.environ.pop("PYTHONUNBUFFERED", None)

import pytest
import torch

import torch_xla
from tests.support import fast_compile_flags, scripts  # noqa: F401  # the first sets XLA's flags, the second notes the environment
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics.recompilation_tracker import tracker
from torch_xla._engine.torch_patches import manual_seed

#: Files whose tests start processes or wait, the longest first. They start before all others, so that no worker runs
#: one of them alone at the end (`make test` distributes the short ones then).
LONG_FIRST = [
    "test_large_models", "test_sharded", "test_build", "test_process_lifetime", "test_collectives", "test_examples",
    "test_training_parity", "test_fork", "test_docs", "test_multi_host", "test_spmd", "test_distributed_checkpoint",
    "test_launcher", "test_persistent_cache", "test_env_vars_jobs", "test_spawn", "test_errors_fuzz",
    "test_diagnostic_variables", "test_data_parallel", "test_env_vars", "test_forked_scripts", "test_cache_folders",
    "test_storage_dtypes", "test_serialization", "test_random_programs", "test_cross_feature", "test_amp",
    "test_last_failure", "test_checkpoint_folders", "test_process_tree", "test_cpu_kernels", "test_kernel_threads",
    "test_device_memory", "test_devices", "test_jax_options", "test_doctor", "test_stablehlo", "test_compat",
    "test_first_steps_table",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long tests first; others keep their order."""
    place = {name: number for number, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    """Exclude imported objects and module fixtures, about a million objects, from garbage collection.

    Tests call gc.collect(), each half a second otherwise; tracing makes thousands of objects that need no collection.
    """
    gc.set_threshold(20_000, 10, 10)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Start with no pending operations, no optimizer without a barrier, no source capture, and seed 0."""
    torch_xla.sync()
    tracker.stop_line_capture()  # an unexpected compilation in the previous test enables capture for 100 steps
    # Like torch.manual_seed, which also captures the whole stack for lazily initialized devices of other types.
    torch.default_generator.manual_seed(0)
    manual_seed.seed_all(0)


@pytest.fixture
def cold() -> None:
    """Clear the program cache: for tests that count compilations."""
    program_cache.cache.clear()
