"""A training step under each configuration option of jax; test_jax_options.py runs it in a separate process.

``check_all`` takes the options from jax.config.values, so that an option of a later jax is covered or fails the test.
"""

from __future__ import annotations

import re
import traceback
from typing import Any

import jax
import torch

import torch_xla
from torch_xla._engine.compilation import program_cache

#: Options that are no switch, and the values that a user may set.
VALUES: dict[str, list[Any]] = {
    "jax_transfer_guard": ["disallow", "disallow_explicit"],
    "jax_transfer_guard_host_to_device": ["disallow_explicit"],
    "jax_transfer_guard_device_to_device": ["disallow_explicit"],
    "jax_transfer_guard_device_to_host": ["disallow_explicit"],
    "jax_array_garbage_collection_guard": ["log"],  # 'fatal' ends the process when a model with cycles is collected
    "jax_numpy_rank_promotion": ["raise"],
    "jax_numpy_dtype_promotion": ["strict"],
    "jax_legacy_prng_key": ["error"],
    "jax_default_prng_impl": ["rbg"],
    "jax_default_matmul_precision": ["highest"],
    "jax_default_device": ["cpu"],
    "jax_platforms": ["cpu"],
    "jax_error_checking_behavior_nan": ["raise"],
    "jax_error_checking_behavior_divide": ["raise"],
    "jax_error_checking_behavior_oob": ["raise"],
    "jax_traceback_filtering": ["off", "remove_frames"],
    "jax_captured_constants_warn_bytes": [-1],
    "jax_captured_constants_report_frames": [1],
    "jax_embedded_constants_max_bytes": [0],
    "jax_traceback_in_locations_limit": [0],
    "jax_optimization_level": ["O1"],
    "jax_memory_fitting_level": ["O0"],
    "jax_exec_time_optimization_effort": [-1.0],
    "jax_memory_fitting_effort": [-1.0],
    "jax_send_traceback_to_runtime": ["full"],
    "jax_random_seed_offset": [3],
    "jax_tracer_error_num_traceback_frames": [1],
    "jax_compiler_detailed_logging_min_ops": [0],
    "jax_use_magma": ["off"],
    "jax_use_hlo_logistic_lowering": [True],
    "jax_pallas_auto_assign_collective_ids": ["yes"],
    "jax_pallas_auto_assign_collective_ids_limit": [1],
}

#: Options that are not set here, and why.
LEFT_OUT = {
    r"jax_logging_level|jax_debug_log_modules|jax_log_compiles|jax_explain_cache_misses": "only print",
    r"jax_distributed_debug|jax_dump_ir.*|jax_include_debug_info_in_dumps|jax_log_checkpoint_residuals": "only print",
    r"jax_pprint_use_color|jax_pallas_verbose_errors": "only print",
    r".*(_visible_devices|topology.*|mock_num.*|_timeout.*)|jax_num_cpu_devices|jax_cpu_.*": "read at backend start",
    r"jax_xla_backend|jax_backend_target|jax_platform_name|jax_pjrt_.*|jax_cross_host.*|jax_force_dcn.*": "the same",
    r"jax_enable_recoverability|jax_enable_preemption_service|jax_check_proxy_envs|jax_sort_devices.*": "the same",
    r"jax_.*(compilation_cache|persistent_cache).*|jax_share_binary.*|jax_hlo_source.*": "jax's own cache of programs",
    r"jax_source_url_schema|jax_pgle_.*|jax_enable_pgle|jax_xla_profile_version": "profiles and sources of programs",
    r"jax_serialization_version|jax_export_.*|jax2tf_.*": "formats of files",
    r"jax_mtls_.*": "certificates of jax.distributed, read at backend start",
    r"jax_explicit_x64_dtypes": "affects the user's jnp calls; the engine enables 64-bit types",
}

Case = tuple[str, Any]


def list_cases() -> list[Case]:
    """Return every option with a value to set. Raises AssertionError for an option that is in no table."""
    cases: list[Case] = []
    for name, value in jax.config.values.items():
        if any(re.fullmatch(pattern, name) for pattern in LEFT_OUT):
            continue
        if name in VALUES:
            cases += [(name, wanted) for wanted in VALUES[name]]
        else:
            assert isinstance(value, bool), f"{name}: add values to VALUES, or a reason to LEFT_OUT"
            cases.append((name, not value))
    return cases


def train(device: str) -> list[torch.Tensor]:
    """A step with a matmul, broadcasting, a scan and an optimizer, and separate NaN and infinity values.

    It is one program, which is recompiled for each option.
    """
    torch.manual_seed(0)
    table, weight = torch.randn(6, 8), torch.randn(8, 8)
    model = torch.nn.Linear(8, 4).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    x, target = table.to(device), torch.tensor([0, 1, 2, 3, 0, 1]).to(device)
    special = torch.tensor([1.0, float("nan"), float("inf")]).to(device)
    hidden = torch.cummax(x @ weight.to(device), 0).values + 0.5
    loss = torch.nn.functional.cross_entropy(model(hidden), target)
    loss.backward()
    optimizer.step()
    results = [loss.detach(), model.weight.detach(), special - special, x.double().sum()]
    torch_xla.sync()
    return [result.cpu() for result in results]


def check_all() -> None:
    """Train under each option, with programs compiled under it, and compare with the CPU."""
    expected = train("cpu")
    failed = []
    for name, value in list_cases():
        before = jax.config.values[name]
        try:
            jax.config.update(name, jax.devices()[-1] if name == "jax_default_device" else value)
            program_cache.cache.clear()
            torch.testing.assert_close(train("xla"), expected, equal_nan=True)
        except BaseException:
            failed.append(f"{name}={value!r}: {traceback.format_exc(limit=-3)[-600:]}")
        finally:
            jax.config.update(name, before)
    assert not failed, f"{len(failed)} failed:\n" + "\n".join(failed)
