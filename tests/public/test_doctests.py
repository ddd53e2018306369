"""Run the examples in docstrings: each is a separate program, and the most used names have at least one.

The examples of a module run in one process, a fork that has four CPU devices and the default settings.
"""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from tests.public.test_api_reference import resolve
from tests.support.helpers import ROOT, run_script

MODULES = [path for path in sorted((ROOT / "torch_xla").rglob("*.py")) if "    >>> " in path.read_text()]

#: Runs the examples of a file: of its docstrings, not of objects, because decorators hide where those were defined.
RUNNER = """
import ast, doctest, pathlib, sys

path = {path!r}
flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
for node in ast.walk(ast.parse(pathlib.Path(path).read_text())):
    if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node):
        name = getattr(node, "name", "module")
        text = ast.get_docstring(node)
        example = doctest.DocTestParser().get_doctest(text, {{"__name__": "__main__"}}, name, path, node.body[0].lineno)
        if example.examples:
            runner.run(example)
sys.exit(runner.summarize(verbose=False).failed > 0)
"""

#: Names that must have an example, by module.
EXAMPLES = {
    "torch_xla": "sync step compile device devices device_count real_devices manual_seed launch",
    "torch_xla.amp": "autocast GradScaler syncfree.Adam syncfree.AdamW syncfree.SGD",
    "torch_xla.backends": "set_mat_mul_precision",
    "torch_xla.core.xla_builder": "call_jax",
    "torch_xla.core.xla_model": "add_step_closure all_gather all_reduce fork_rng get_memory_info get_ordinal "
    "get_rng_state master_print mark_step mesh_reduce optimizer_step reduce_scatter rendezvous save set_rng_state "
    "wait_device_ops xla_device",
    "torch_xla.debug": "report",
    "torch_xla.debug.layer_comparator": "compare_module",
    "torch_xla.debug.memory": "buffers no_leak peak_per_step summary",
    "torch_xla.debug.metrics": "clear_all counter_names counter_value executed_fallback_ops metric_data "
    "metrics_report short_metrics_report",
    "torch_xla.debug.profiler": "StepTrace Trace start_trace stop_trace",
    "torch_xla.debug.recompilation": "count report watch",
    "torch_xla.distributed.data_parallel": "DataParallel",
    "torch_xla.distributed.fsdp": "XlaFullyShardedDataParallel checkpoint_module",
    "torch_xla.distributed.parallel_loader": "MpDeviceLoader ParallelLoader",
    "torch_xla.distributed.spmd": "Mesh ShardingSpec disable_manual_sharding enable_manual_sharding get_1d_mesh "
    "get_global_mesh get_sharding mark_sharding set_global_mesh",
    "torch_xla.distributed.xla_multiprocessing": "spawn",
    "torch_xla.distributed.zero_redundancy_optimizer": "ZeroRedundancyOptimizer",
    "torch_xla.experimental": "eager.eager_mode_context fori_loop.fori_loop fori_loop.while_loop scan.scan "
    "scan_layers.StackedLayers scan_layers.scan_layers assume_pure.assume_pure "
    "gradient_accumulation.gradient_accumulation custom_kernel.flash_attention",
    "torch_xla.experimental.distributed_checkpoint": "CheckpointManager prime_optimizer",
    "torch_xla.experimental.spmd_fully_sharded_data_parallel": "SpmdFullyShardedDataParallel",
    "torch_xla.interop": "from_jax jax_function module_as_jax to_jax torch_function_as_jax",
    "torch_xla.runtime": "device_type global_ordinal global_runtime_device_count initialize_cache is_spmd use_spmd "
    "world_size",
    "torch_xla.stablehlo": "StableHLOGraphModule exported_program_to_stablehlo save_as_stablehlo "
    "save_torch_model_as_stablehlo",
    "torch_xla.utils.checkpoint": "checkpoint",
    "torch_xla.utils.serialization": "load save",
}


@pytest.mark.parametrize("path", [pytest.param(path, id=str(path.relative_to(ROOT / "torch_xla"))) for path in MODULES])
def test_examples_run(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # for files that examples write
    done = run_script(RUNNER.format(path=str(path)), check=False, CPU_NUM_DEVICES="4", TORCH_XLA_COMPILE_POLICY="auto")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


@pytest.mark.parametrize("module", EXAMPLES)
def test_most_used_names_have_an_example(module: str) -> None:
    docs = {name: inspect.getdoc(resolve(f"{module}.{name}")) or "" for name in EXAMPLES[module].split()}
    assert [name for name, text in docs.items() if ">>> " not in text or "+SKIP" in text] == []
