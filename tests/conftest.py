"""Every test starts from a cut graph and the same seed; programs are compiled quickly rather than well."""

from __future__ import annotations

import gc
import os

# There is a worker for each core: a second thread of torch's waits for work by spinning, and takes time from the other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# As importing scikit-learn does, of which some tests take the digits: forks are refused to those whose variables of
# OpenMP are others than those that their server was started with (fork_server.py), and interpreters take seconds.
os.environ.setdefault("KMP_DUPLICATE_LIB_OK", "True")
os.environ.setdefault("KMP_INIT_AT_FORK", "FALSE")

import pytest
import torch

import torch_xla
from tests.support import fast_compile_flags, scripts  # noqa: F401  # the first sets XLA's flags, the second notes the environment
from torch_xla._engine.compilation import program_cache
from torch_xla._engine.diagnostics.recompilation_tracker import watcher
from torch_xla._engine.torch_patches import manual_seed

#: Files whose tests start processes or wait, the longest first. They are begun before all others, so that none of them
#: is what one worker still does when the rest have nothing left (`make test` hands the short ones over then).
LONG_FIRST = [
    "test_large_models", "test_sharded", "test_build", "test_process_lifetime", "test_collectives", "test_examples",
    "test_training_parity", "test_fork", "test_docs", "test_multi_host", "test_spmd", "test_distributed_checkpoint",
    "test_launcher", "test_persistent_cache", "test_env_vars_jobs", "test_spawn", "test_errors_fuzz",
    "test_diagnostic_variables", "test_data_parallel", "test_env_vars", "test_forked_scripts", "test_cache_folders",
    "test_storage_dtypes", "test_serialization", "test_random_programs", "test_cross_feature", "test_amp",
    "test_last_failure", "test_checkpoint_folders", "test_process_tree", "test_cpu_kernels", "test_device_memory",
    "test_devices", "test_jax_options", "test_doctor", "test_stablehlo", "test_compat",
]  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long tests first; others stay in their order."""
    place = {name: number for number, name in enumerate(LONG_FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(place)))


@pytest.fixture(autouse=True, scope="module")
def settled() -> None:
    """What was imported, and kept by files before, is a million objects that no collection of garbage looks at.

    Tests ask for collections, each half a second otherwise; tracing makes thousands of objects that go by themselves.
    """
    gc.set_threshold(20_000, 10, 10)
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def fresh() -> None:
    """Nothing pending from the test before, no optimizer without its barrier, no lines captured, seed 0."""
    torch_xla.sync()
    watcher.stop_line_capture()  # an unexpected compilation in the test before has their capture on for 100 steps
    # As torch.manual_seed, which notes the whole stack for devices of other kinds, should they be used one day.
    torch.default_generator.manual_seed(0)
    manual_seed.seed_all(0)


@pytest.fixture
def cold() -> None:
    """No program compiled by tests before, whichever these were: for tests that count compilations."""
    program_cache.cache.clear()
