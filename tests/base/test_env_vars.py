"""Every environment variable has a test that sets it in a separate process and checks its effect.

A variable of the settings table is in one of three tables: EFFECTS (several are set in one process), ALONE of
test_env_vars_jobs.py (one process each), or IN_TESTS_OF_THEIR_OWN. A test here fails for a variable in none of them.
Deprecated names are in DEPRECATED.
"""

from __future__ import annotations

import ast
import textwrap
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.base.test_env_vars_jobs import ALONE
from tests.support.helpers import ROOT, link_builds, run_script
from torch_xla._engine.base import settings as settings_module
from torch_xla._engine.base.settings import Settings, variables

#: Variables in the documents of 2019 and 2020, by their spelling there.
DOCUMENTED = {
    "XRT_TPU_CONFIG", "XRT_DEVICE_MAP", "XRT_WORKERS", "COLAB_TPU_ADDR", "XLA_IR_DEBUG", "XLA_HLO_DEBUG",
    "XLA_SAVE_TENSORS_FILE", "XLA_SAVE_TENSORS_FMT", "XLA_METRICS_FILE", "GET_TENSORS_OPBYOP", "SYNC_TENSORS_OPBYOP",
    "XLA_SYNC_WAIT", "XLA_USE_BF16", "XLA_USE_32BIT_LONG",
}  # fmt: skip


@dataclass(frozen=True)
class Effect:
    """``look`` prints a line: ``without`` if the variable is unset, ``as_set`` if it is ``value``.

    ``{tmp}`` in a value is a folder of the test. Variables of one ``group`` are set together.
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
_LOADED_FROM = 'print("{}" in recorder.bindings().__file__)'

EFFECTS = {
    "TORCH_XLA_EXPLAIN_RECOMPILATIONS": Effect(
        "1",
        """
        records = []
        logging.getLogger("torch_xla.recompilation").addFilter(lambda record: records.append(record) or False)
        for size in (3, 4):
            (torch.ones(size).to("xla") * 2).cpu()
        print(len(records))
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
    """Return what the scripts of the variables print, run one after the other in one process."""
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


_DEFAULT_FOLDER = "compilation/test_persistent_cache.py::test_the_users_own_folder_is_used_where_none_is_named"
_DTYPES = "device/test_storage_dtypes.py::test_variables"
_DEFAULT_FOLDER = "compilation/test_persistent_cache.py::test_the_users_own_folder_is_used_where_none_is_named"
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
    "TORCH_XLA_RENDEZVOUS_FILE": _JOB_BY_HAND,
    "TORCH_XLA_GRACE_PERIOD": "integration/test_process_tree.py::test_grace_period",
    "TORCH_XLA_RENDEZVOUS_TIMEOUT": _JOB_BY_HAND,
    "XLA_USE_BF16": _DTYPES,
    "XLA_DOWNCAST_FP16": _DTYPES,
    "XLA_USE_32BIT_LONG": _DTYPES,
    "XLA_TRIM_GRAPH_SIZE": "recorder/test_graph_flush.py::test_large_graphs_are_flushed",
    "TORCH_XLA_AUTO_SYNC": "recorder/test_graph_flush.py::test_automatic_barrier_can_be_disabled",
    "XLA_SYNC_WAIT": "diagnostics/test_diagnostic_variables.py::test_sync_wait",
    "RATE_TRACKER_SMOOTHING": "execution/test_step_closures.py::test_rates_are_smoothed_as_the_environment_says",
    "XLA_COMPILATION_CACHE_SIZE": "execution/test_sync.py::test_program_cache_is_bounded",
    "XLA_PERSISTENT_CACHE_PATH": "compilation/test_persistent_cache.py::test_second_process_compiles_nothing",
    "TORCH_XLA_PERSISTENT_CACHE_MAX_GB": _DEFAULT_FOLDER,
    "XLA_PERSISTENT_CACHE_READ_ONLY": "compilation/test_persistent_cache.py::test_second_process_compiles_nothing",
    "TORCH_XLA_COMPILE_POLICY": "execution/test_compile_policy.py::test_environment",
    "TORCH_XLA_CPU_KERNELS": "cpu_backend/test_cpu_kernels.py::test_off",
    "TORCH_XLA_KEEP_HEAP": "diagnostics/test_device_memory.py::test_freed_user_arrays_do_not_stay_resident",
    "TORCH_XLA_WARN_FALLBACK": "recorder/test_fallback.py::test_warnings_can_be_turned_off",
    "XLA_METRICS_SAMPLES": "diagnostics/test_metrics.py::test_settings",
    "XLA_METRICS_PERCENTILES": "diagnostics/test_metrics.py::test_settings",
    "TORCH_XLA_CHECK_INDICES": "execution/test_value_checks.py::test_check_indices_of_modes",
    "XLA_IR_DEBUG": "recorder/test_source_info.py::test_ir_debug",
    "XLA_HLO_DEBUG": "recorder/test_source_info.py::test_hlo_debug",
    "XLA_SAVE_TENSORS_FILE": "execution/test_graph_dump.py::test_environment",
    "XLA_SAVE_TENSORS_FMT": "execution/test_graph_dump.py::test_environment",
    "XLA_SYNC_TENSORS_OPBYOP": _ONE_BY_ONE,
    "XLA_GET_TENSORS_OPBYOP": _ONE_BY_ONE,
    "XLA_USE_EAGER_DEBUG_MODE": _ONE_BY_ONE,
    "XLA_METRICS_FILE": "diagnostics/test_diagnostic_variables.py::test_metrics_file",
    "TORCH_XLA_LOGS": "diagnostics/test_diagnostic_variables.py::test_logs_and_the_default_explanation",
    "TORCH_XLA_TRACEBACK": "base/test_tracebacks.py::test_internal_frames",
    "XLA_EMIT_STEPLOG": "diagnostics/test_diagnostic_variables.py::test_metrics_to_a_stream_and_steplog",
    "PT_XLA_DEBUG": "diagnostics/test_diagnostic_variables.py::test_analyses",
    "PT_XLA_DEBUG_LEVEL": _ANALYSIS,
    "PT_XLA_DEBUG_FILE": _ANALYSIS,
    "PT_XLA_DEBUG_MAX_FRAME": _ANALYSIS,
}


#: Deprecated names with a text that is not the default -> the variable that replaces them, and its text.
DEPRECATED: list[tuple[dict[str, str], str, str]] = [
    ({"XLA_AUTO_BARRIER": "0"}, "TORCH_XLA_AUTO_SYNC", "0"),
    ({"XLA_FALLBACK_WARN": "0"}, "TORCH_XLA_WARN_FALLBACK", "0"),
    ({"XLA_EXPLAIN_RECOMPILATIONS": "5"}, "TORCH_XLA_EXPLAIN_RECOMPILATIONS", "5"),
    ({"XLA_RENDEZVOUS_TIMEOUT": "7"}, "TORCH_XLA_RENDEZVOUS_TIMEOUT", "7"),
    ({"TORCH_XLA_RENDEZVOUS": "/store"}, "TORCH_XLA_RENDEZVOUS_FILE", "/store"),
    ({"TORCH_XLA_PERSISTENT_CACHE_GB": "2"}, "TORCH_XLA_PERSISTENT_CACHE_MAX_GB", "2"),
    ({"TORCH_XLA_STORM": "interpret"}, "TORCH_XLA_COMPILE_POLICY", "auto"),
    ({"TORCH_XLA_STORM": "compile"}, "TORCH_XLA_COMPILE_POLICY", "compile"),
    ({"TORCH_XLA_FIRST_RUN": "auto"}, "TORCH_XLA_COMPILE_POLICY", "auto"),
    ({"TORCH_XLA_FIRST_RUN": "eager"}, "TORCH_XLA_COMPILE_POLICY", "auto"),
    ({"TORCH_XLA_FIRST_RUN": "compile"}, "TORCH_XLA_COMPILE_POLICY", "compile"),
    ({"TORCH_XLA_STORM": "compile", "TORCH_XLA_FIRST_RUN": "eager"}, "TORCH_XLA_COMPILE_POLICY", "auto"),
    ({"TORCH_XLA_STORM": "compile", "TORCH_XLA_FIRST_RUN": "compile"}, "TORCH_XLA_COMPILE_POLICY", "compile"),
]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """An environment that sets no variable of torch_xla, in a process that has not warned of a deprecated name."""
    for variable in variables():
        for name in variable.spellings:
            monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(settings_module, "_warned_deprecated", set())
    return monkeypatch


@pytest.mark.parametrize(("old", "new", "text"), DEPRECATED, ids=str)
def test_deprecated_name(old: dict[str, str], new: str, text: str, environment: pytest.MonkeyPatch) -> None:
    """Its value is that of the new name, with one warning that says what to set; the new name takes precedence."""
    for name, value in old.items():
        environment.setenv(name, value)
    with pytest.warns(
        FutureWarning, match=f"{' and '.join(old)} (is|are) deprecated .* set {new}={text} instead"
    ) as warned:
        found = [Settings().get(name) for name in (new, *old)]
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert Settings().get(new) == found[0], "warned once"
        environment.setenv(new, text)
        environment.setattr(settings_module, "_warned_deprecated", set())
        assert found == [Settings().get(new)] * len(found)
        for name in old:
            environment.setenv(name, "invalid")
        assert Settings().get(new) == found[0]


def test_deprecated_names_are_in_the_table() -> None:
    assert {name for old, _, _ in DEPRECATED for name in old} == {n for v in variables() for n in v.deprecated}


def test_invalid_text_of_a_deprecated_name(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TORCH_XLA_FIRST_RUN", "never")
    with pytest.raises(ValueError, match="TORCH_XLA_FIRST_RUN='never' is not auto, eager or compile"):
        Settings().get("TORCH_XLA_COMPILE_POLICY")


def test_deprecated_name_in_a_process() -> None:
    """The warning is visible by default, once, and the variable has its effect."""
    code = """
        import warnings
        warnings.resetwarnings()
        import torch, torch_xla
        import torch_xla.debug.metrics as met
        for n in range(3):
            y = torch.ones(n + 1).to("xla") * 3
            torch_xla.sync()
        print(met.counter_value("InterpretedGraphs"))
    """
    old = {"TORCH_XLA_STORM": "compile", "TORCH_XLA_FIRST_RUN": "eager"}
    done = run_script(code, check=False, TORCH_XLA_COMPILE_POLICY="", **old)
    assert done.stdout == "3\n"
    assert done.stderr.count("FutureWarning") == done.stderr.count("set TORCH_XLA_COMPILE_POLICY=auto") == 1


def test_every_variable_is_in_one_table() -> None:
    tables = [*EFFECTS, *ALONE, *IN_TESTS_OF_THEIR_OWN]
    assert len(tables) == len(set(tables))
    assert set(tables) >= {variable.name for variable in variables()}, "a setting without a test"
    assert set(tables) - {variable.name for variable in variables()} <= {"CUDA_VISIBLE_DEVICES"}, "it no longer exists"
    assert {name for variable in variables() for name in variable.spellings} >= DOCUMENTED


@pytest.mark.parametrize("name", IN_TESTS_OF_THEIR_OWN)
def test_the_test_of_a_variable_sets_it_in_a_process(name: str) -> None:
    """Check the source: the test calls run_script and contains the name as a keyword or a string."""
    file, _, function = IN_TESTS_OF_THEIR_OWN[name].partition("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    words = {node.arg for node in ast.walk(found) if isinstance(node, ast.keyword)}
    words |= {node.value for node in ast.walk(found) if isinstance(node, ast.Constant)}
    calls = {node.id for node in ast.walk(found) if isinstance(node, ast.Name)}
    spellings = set(next(v.spellings for v in variables() if v.name == name))
    assert "run_script" in calls and words & spellings
