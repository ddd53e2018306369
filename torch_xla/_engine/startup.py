"""Initialize torch_xla on import: load the recorder, find the CPU kernels, register the operators, install the hooks.

Starts no backend and no thread: processes fork after importing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks, import_hooks, logging_config, partitioning, settings_check
from torch_xla._engine.base.settings import Settings, settings
from torch_xla._engine.base.tracebacks import hide_engine_frames
from torch_xla._engine.compat import (
    contraction_kernel,
    dispatcher,
    dynamo,
    imported_names,
    lax_scan,
    process_exit,
    versions,
)
from torch_xla._engine.compilation import hlo_metadata
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.cpu_backend import library
from torch_xla._engine.device import capabilities, devices
from torch_xla._engine.diagnostics import (
    completion,
    debug_analysis,
    fallback_warning,
    recompilation_tracker,
    step_timings,
)
from torch_xla._engine.execution import background_threads, barrier, eager_mode, executor, transfers, value_errors
from torch_xla._engine.lowering import RULES, composites, decompose, decompositions, load_rules, recorder_ops
from torch_xla._engine.lowering.rules import custom_call, jax_call, recurrent
from torch_xla._engine.parallel import collective_ops, shutdown, spmd
from torch_xla._engine.recorder import device_guard_library, source_info
from torch_xla._engine.torch_patches import (
    accelerator,
    autocast_cuda,
    autograd_threading,
    checkpoint_barrier,
    compiled_optimizers,
    control_flow,
    dataloader_timing,
    device_module,
    flex_attention,
    fused_optimizers,
    jagged_attention,
    manual_seed,
    module_to,
    optimizer_state,
    serialization,
    transformer_encoder,
)
from torch_xla_autoload import loading

_started = False


@hide_engine_frames
def initialize() -> None:
    """Register ``xla`` as a device of this process, once."""
    global _started
    if _started:
        return
    settings_check.check_environment()
    _started = True
    logging_config.configure_logging()
    versions.warn_untested_versions()
    collective_ops.define()
    for operators in (jax_call, custom_call, composites, fused_optimizers, recurrent):
        operators.define()
    value_errors.define()
    load_rules()
    partitioning.set_partition_count(spmd.partition_count)
    lax_scan.use_int32_scan_counters()
    module = recorder.bindings()
    library.locate_library()
    module.set_hooks(
        device_count=_entry_point(devices.count),
        upload=_entry_point(transfers.upload),
        download=_entry_point(transfers.download),
        transfer=_entry_point(transfers.copy_between_devices),
        materialize=_entry_point(executor.materialize),
        cut=_entry_point(barrier.flush_graph),
        fallback=_entry_point(fallback_warning.handle_fallback),
        supports_operator=_entry_point(capabilities.supports_operator),
        fallback_done=dynamo_hooks.dynamo_disable(step_timings.end_fallback),
    )
    if loading.remove_hooks():
        device_guard_library.build_library()
    module.set_constant_numbers(not settings.XLA_NO_SPECIAL_SCALARS)
    eager_mode.set_eager(settings.XLA_USE_EAGER_DEBUG_MODE)
    # Until the backend starts there is none: see autograd_threading.
    module.set_advertised_devices(0)
    devices.on_backend_start(lambda _: contraction_kernel.disable_if_profiled())
    devices.on_backend_start(lambda _: module.set_advertised_devices(_max_device_count()))
    devices.on_backend_start(lambda _: module.set_missing_device_advice(devices.missing_device_advice()))
    _register(module)
    if settings.XLA_IR_DEBUG or settings.XLA_HLO_DEBUG:
        source_info.set_capture(True)
    else:
        recompilation_tracker.tracker.capture = source_info.set_capture
    if settings.XLA_HLO_DEBUG:
        hlo_metadata.enable()
    autocast_cuda.patch_autocast()
    autograd_threading.patch_backward()
    barrier.install_optimizer_hook()
    manual_seed.patch_manual_seed()
    dataloader_timing.patch_dataloader()
    if settings.PT_XLA_DEBUG:
        process_exit.register_at_exit(debug_analysis.write_exit_summary)
    serialization.patch_serialization()
    transformer_encoder.patch_transformer_encoder()
    fused_optimizers.patch_fused_optimizers()
    optimizer_state.patch_load_state_dict()
    compiled_optimizers.patch_compiled_optimizers()
    control_flow.register_control_flow()
    flex_attention.patch_flex_attention()
    jagged_attention.patch_jagged_attention()
    module_to.patch_module_to()
    checkpoint_barrier.patch_checkpoint()
    dynamo_hooks.install_dynamo_hooks()
    import_hooks.on_import(
        "torch._subclasses.fake_tensor", lambda _: dynamo.wrap_fake_tensors(device_module.make_fake_tensor)
    )
    accelerator.patch_accelerator()
    imported_names.replace_imported_names()
    dispatcher.register_device_module("xla", device_module.public_module())
    devices.on_backend_start(persistent_cache.start_prefetch)
    os.register_at_fork(after_in_child=lambda: _abandon_devices(module))
    process_exit.register_at_exit(shutdown.at_exit)  # registered before the next function, so it runs after it
    process_exit.register_at_exit(lambda: module.close(threads=threading.active_count() > 1))
    # Runs before the executables are destroyed, and after the threads that launch programs (data loading, cache
    # prefetch) have ended: those register later, so they end earlier.
    process_exit.register_at_exit(completion.wait_at_exit)
    process_exit.register_at_exit(persistent_cache.stop_prefetch)
    process_exit.register_at_exit(background_threads.report_failures)  # threads that still run may use devices
    process_exit.flush_queues_before_atexit()


def _entry_point(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function for the recorder to call: not traced by dynamo, without internal frames in its errors."""
    return dynamo_hooks.dynamo_disable(hide_engine_frames(dynamo_hooks.dynamo_disable(function)))


def _abandon_devices(module: ModuleType) -> None:
    if devices.inherited_objects():
        module.lose_devices(devices.LOST, devices.inherited_objects())


def _max_device_count() -> int:
    # Read without caching: scripts may set the number of devices after importing.
    return max(8, Settings.CPU_NUM_DEVICES.read(), Settings.XRT_DEVICE_MAP.read().count("|") + 1)


def _register(module: ModuleType) -> None:
    module.register_special_kernels()
    for name, rule in RULES.items():
        if name in recorder_ops.UNRECORDED or not module.register_recorded_ops(name, rule.static_args, rule.random):
            continue  # this torch does not have it
        if name in decompositions.USED:
            module.mark_decomposition(name)
    for name in decompose.decomposition_table():
        # A decomposition is traced with the numbers of the call: all of them are constants.
        numbers = {a.name for a in dispatcher.schema(decompose.overload(name)).arguments}
        module.register_recorded_ops(name, numbers, False)
    module.register_schema_kinds()
