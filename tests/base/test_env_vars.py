"""Every environment variable has a test that sets it for a process of its own, and sees what it does there.

A variable of the settings table is in one of three tables: EFFECTS (many are set in one process), ALONE of
test_env_vars_jobs.py (a process each), or IN_TESTS_OF_THEIR_OWN. One that is in none of them fails a test here.
"""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.base.test_env_vars_jobs import ALONE
from tests.support.helpers import ROOT, link_builds, run_script
from torch_xla._engine.base.settings import variables

#: What the documents of 2019 and 2020 name, by its spelling there.
DOCUMENTED = {
    "XRT_TPU_CONFIG", "XRT_DEVICE_MAP", "XRT_WORKERS", "COLAB_TPU_ADDR", "XLA_IR_DEBUG", "XLA_HLO_DEBUG",
    "XLA_SAVE_TENSORS_FILE", "XLA_SAVE_TENSORS_FMT", "XLA_METRICS_FILE", "GET_TENSORS_OPBYOP", "SYNC_TENSORS_OPBYOP",
    "XLA_SYNC_WAIT", "XLA_USE_BF16", "XLA_USE_32BIT_LONG",
}  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """``look`` prints a line: ``without`` where the variable is not set, ``as_set`` where it is ``value``.

    ``{tmp}`` in a value is a folder of the test's. Variables of one ``group`` are set together.
    """

    value: str
    look: str
    without: str
    as_set: str
    group: int = 0


_NARROW = """
    for dtype in (torch.float32, torch.float64):
        print(torch.tensor(1 + 2**-10, dtype=dtype).to("xla").item(), end=" ")
    print()
    """
_LOADED_FROM = 'print("{}" in recorder.module().__file__)'

EFFECTS = {
    "XLA_EXPLAIN_RECOMPILATIONS": Effect(
        "1",
        """
        told = []
        logging.getLogger("torch_xla.recompilation").addFilter(lambda record: told.append(record) or False)
        for size in (3, 4):
            (torch.ones(size).to("xla") * 2).cpu()
        print(len(told))
        """,
        "0",
        "1",
    ),
    "XLA_NO_SPECIAL_SCALARS": Effect(
        "1",
        """
        w = torch.ones(2).to("xla")
        torch_xla.sync()
        before = met.counter_value("UncachedSyncTensors")
        for number in (1, 2):
            w.add_(number)
            torch_xla.sync()
        print(met.counter_value("UncachedSyncTensors") - before, "programs")
        """,
        "2 programs",
        "1 programs",
    ),
    "SAVE_GRAPH_FMT": Effect(
        "dot",
        """
        with tempfile.TemporaryDirectory() as folder:
            graph_saver.save_tensors_graph(folder, "graph", [torch.ones(2, device="xla") * 2.5])
            print(*(file.read_text().split()[0] for file in Path(folder).iterdir()))
        """,
        "IR",
        "digraph",
    ),
    "MODELCMP_SAVEDIR": Effect(
        "{tmp}/saved",
        """
        model_comparator.save("x", torch.ones(2, device="xla"))
        print(Path(os.environ.get("MODELCMP_SAVEDIR", "none"), "x.0").exists())
        """,
        "False",
        "True",
    ),
    "ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB": Effect(
        "1",
        """
        with replicas.replicate([0, 1], 0):  # recorded, and never run
            parameters = [torch.nn.Parameter(torch.ones(200_000, device="xla")) for _ in range(3)]
            for parameter in parameters:
                parameter.grad = torch.ones_like(parameter)
            xm.reduce_gradients(torch.optim.SGD(parameters, lr=0.1))
        print(met.counter_value("xla::all_reduce"), "collectives")
        """,
        "1 collectives",
        "3 collectives",
    ),
    "XLA_DOWNCAST_BF16": Effect("1", _NARROW, "1.0009765625 1.0009765625", "1.0 1.0009765625"),
    "XDG_CACHE_HOME": Effect("{tmp}/xdg", _LOADED_FROM.format("/xdg/torch_xla/recorder/"), "False", "True"),
    "XLA_USE_F16": Effect("1", _NARROW, "1.0009765625 1.0009765625", "1.0 1.0", group=1),
    "TORCH_XLA_CACHE_DIR": Effect("{tmp}/cache", _LOADED_FROM.format("/cache/recorder/"), "False", "True", group=1),
}

PRELUDE = """
import logging, os, tempfile
from pathlib import Path
import torch, torch_xla
import torch_xla.core.xla_model as xm
from torch_xla._engine import recorder
from torch_xla._engine.job import replicas
from torch_xla.debug import graph_saver, model_comparator
from torch_xla.debug import metrics as met
"""


def _looked(names: list[str], environment: dict[str, str]) -> dict[str, str]:
    """What the variables' looks print, one after the other in one process."""
    looks = "".join(f"print({name!r}, end=': ')\n{textwrap.dedent(EFFECTS[name].look)}\n" for name in names)
    lines = run_script(PRELUDE + looks, **environment).stdout.splitlines()
    return {name: rest.strip() for name, rest in (line.split(": ") for line in lines)}


def test_effects(tmp_path: Path) -> None:
    for cache in ("xdg/torch_xla", "cache"):
        link_builds(tmp_path / cache)
    everything = list(EFFECTS)
    assert _looked(everything, {}) == {name: effect.without for name, effect in EFFECTS.items()}
    for group in {effect.group for effect in EFFECTS.values()}:
        members = {name: effect for name, effect in EFFECTS.items() if effect.group == group}
        environment = {name: effect.value.format(tmp=tmp_path) for name, effect in members.items()}
        assert _looked(list(members), environment) == {name: effect.as_set for name, effect in members.items()}


_DTYPES = "device/test_storage_dtypes.py::test_variables"
_ONE_BY_ONE = "execution/test_op_by_op.py::test_environment"
_JOB_OF_SIX = "device/test_runtime.py::test_set_device_type_and_a_job_of_six_on_two_machines"
_JOB_BY_HAND = "base/test_env_vars_jobs.py::test_a_job_by_hand"
_OLD_DEVICES = "device/test_xrt_config.py::test_two_devices_as_the_readme_of_2019_has_them"
_ANALYSIS = "diagnostics/test_diagnostic_variables.py::test_analysis_of_compilations_to_a_file"
IN_TESTS_OF_THEIR_OWN = {
    "CPU_NUM_DEVICES": "integration/test_process_lifetime.py::test_two_devices",
    "XRT_DEVICE_MAP": _OLD_DEVICES,
    "XRT_WORKERS": _OLD_DEVICES,
    "TPU_ACCELERATOR_TYPE": "device/test_runtime.py::test_what_starts_no_backend",
    "RANK": _JOB_BY_HAND,
    "WORLD_SIZE": _JOB_BY_HAND,
    "LOCAL_RANK": _JOB_BY_HAND,
    "LOCAL_WORLD_SIZE": _JOB_BY_HAND,
    "MASTER_ADDR": _JOB_OF_SIX,
    "MASTER_PORT": _JOB_OF_SIX,
    "TORCH_XLA_RENDEZVOUS": _JOB_BY_HAND,
    "TORCH_XLA_GRACE_PERIOD": "integration/test_process_tree.py::test_grace_period",
    "XLA_RENDEZVOUS_TIMEOUT": _JOB_BY_HAND,
    "XLA_USE_BF16": _DTYPES,
    "XLA_DOWNCAST_FP16": _DTYPES,
    "XLA_USE_32BIT_LONG": _DTYPES,
    "XLA_TRIM_GRAPH_SIZE": "recorder/test_graph_flush.py::test_large_graphs_are_cut",
    "XLA_AUTO_BARRIER": "recorder/test_graph_flush.py::test_automatic_barrier_can_be_turned_off",
    "XLA_SYNC_WAIT": "diagnostics/test_diagnostic_variables.py::test_sync_wait",
    "RATE_TRACKER_SMOOTHING": "execution/test_step_closures.py::test_rates_are_smoothed_as_the_environment_says",
    "XLA_COMPILATION_CACHE_SIZE": "execution/test_sync.py::test_program_cache_is_bounded",
    "XLA_PERSISTENT_CACHE_PATH": "compilation/test_persistent_cache.py::test_second_process_compiles_nothing",
    "TORCH_XLA_PERSISTENT_CACHE_GB": "compilation/test_persistent_cache.py::test_the_users_own_folder_is_used_where_none_is_named",
    "XLA_PERSISTENT_CACHE_READ_ONLY": "compilation/test_persistent_cache.py::test_second_process_compiles_nothing",
    "TORCH_XLA_STORM": "execution/test_compile_policy.py::test_environment",
    "TORCH_XLA_FIRST_RUN": "execution/test_compile_policy.py::test_environment",
    "TORCH_XLA_CPU_KERNELS": "cpu_backend/test_cpu_kernels.py::test_off",
    "TORCH_XLA_KEEP_HEAP": "diagnostics/test_device_memory.py::test_the_users_own_arrays_may_stay_with_the_process",
    "XLA_FALLBACK_WARN": "recorder/test_fallback.py::test_warnings_can_be_turned_off",
    "XLA_METRICS_SAMPLES": "diagnostics/test_metrics.py::test_settings",
    "XLA_METRICS_PERCENTILES": "diagnostics/test_metrics.py::test_settings",
    "XLA_IR_DEBUG": "recorder/test_source_info.py::test_ir_debug",
    "XLA_HLO_DEBUG": "recorder/test_source_info.py::test_hlo_debug",
    "XLA_SAVE_TENSORS_FILE": "execution/test_graph_dump.py::test_environment",
    "XLA_SAVE_TENSORS_FMT": "execution/test_graph_dump.py::test_environment",
    "XLA_SYNC_TENSORS_OPBYOP": _ONE_BY_ONE,
    "XLA_GET_TENSORS_OPBYOP": _ONE_BY_ONE,
    "XLA_USE_EAGER_DEBUG_MODE": _ONE_BY_ONE,
    "XLA_METRICS_FILE": "diagnostics/test_diagnostic_variables.py::test_metrics_file",
    "TORCH_XLA_LOGS": "diagnostics/test_diagnostic_variables.py::test_logs_and_the_default_explanation",
    "XLA_EMIT_STEPLOG": "diagnostics/test_diagnostic_variables.py::test_metrics_to_a_stream_and_steplog",
    "PT_XLA_DEBUG": "diagnostics/test_diagnostic_variables.py::test_analyses",
    "PT_XLA_DEBUG_LEVEL": _ANALYSIS,
    "PT_XLA_DEBUG_FILE": _ANALYSIS,
    "PT_XLA_DEBUG_MAX_FRAME": _ANALYSIS,
}


def test_every_variable_is_in_one_table() -> None:
    tables = [*EFFECTS, *ALONE, *IN_TESTS_OF_THEIR_OWN]
    assert len(tables) == len(set(tables))
    assert set(tables) >= {variable.name for variable in variables()}, "a setting without a test"
    assert set(tables) - {variable.name for variable in variables()} <= {"CUDA_VISIBLE_DEVICES"}, "it no longer exists"
    assert {name for variable in variables() for name in (variable.name, *variable.aliases)} >= DOCUMENTED


@pytest.mark.parametrize("name", IN_TESTS_OF_THEIR_OWN)
def test_the_test_of_a_variable_sets_it_in_a_process(name: str) -> None:
    """As far as its source tells: it runs scripts, and has the name as a keyword or a text of its own."""
    file, _, function = IN_TESTS_OF_THEIR_OWN[name].partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    words = {node.arg for node in ast.walk(found) if isinstance(node, ast.keyword)}
    words |= {node.value for node in ast.walk(found) if isinstance(node, ast.Constant)}
    calls = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    spellings = next({v.name, *v.aliases} for v in variables() if v.name == name)
    assert "run_script" in calls and words & spellings
