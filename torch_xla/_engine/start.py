"""What importing torch_xla does to the process: loads the recorder, registers the ops, installs the hooks.

Starts no backend and no thread: processes fork after importing.
"""

from __future__ import annotations

import atexit
import os
import threading
import warnings
from types import ModuleType

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo, frames, imports, logs, partitioning, versions
from torch_xla._engine.base.compat import dispatcher, ending, loops, tracing
from torch_xla._engine.base.settings import Settings, settings
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import analysis, journal, observer, recompilation, under_way
from torch_xla._engine.execution import background, barrier, compile_cache, executor, modes, transfers
from torch_xla._engine.graph import hlo_metadata
from torch_xla._engine.lowering import RULES, composites, core, custom_call, decompose, jax_call, load_rules
from torch_xla._engine.parallel import collective_ops, sharded, shutdown
from torch_xla._engine.patches import (
    backward,
    control_flow,
    data_loader,
    device_module,
    encoder,
    fused_optimizers,
    module_moves,
    pickling,
    rematerialize,
    seeding,
)
from torch_xla._engine.recorder import origins

_started = False


def start() -> None:
    """Makes ``xla`` a device of this process; once."""
    global _started
    if _started:
        return
    _started = True
    logs.setup()
    versions.warn_of_untested()
    collective_ops.define()
    for operators in (jax_call, custom_call, composites, fused_optimizers):
        operators.define()
    load_rules()
    partitioning.splits_over(sharded.partition_count)
    loops.count_in_32_bits()
    module = recorder.module()
    module.set_hooks(
        device_count=dynamo.runs_as_it_is(devices.count),
        upload=dynamo.runs_as_it_is(transfers.upload),
        download=dynamo.runs_as_it_is(transfers.download),
        transfer=dynamo.runs_as_it_is(transfers.transfer),
        materialize=dynamo.runs_as_it_is(executor.materialize),
        cut=dynamo.runs_as_it_is(barrier.cut),
        fallback=dynamo.runs_as_it_is(_on_fallback),
        fallback_done=dynamo.runs_as_it_is(journal.end_fallback),
    )
    module.set_constant_numbers(not settings.XLA_NO_SPECIAL_SCALARS)
    modes.set_eager(settings.XLA_USE_EAGER_DEBUG_MODE)
    module.set_advertised_devices(_devices_at_most())
    _register(module)
    if settings.XLA_IR_DEBUG or settings.XLA_HLO_DEBUG:
        origins.capture(True)
    else:
        recompilation.watcher.capture = origins.capture
    if settings.XLA_HLO_DEBUG:
        hlo_metadata.install()
    backward.install()
    barrier.install()
    seeding.install()
    data_loader.install()
    if settings.PT_XLA_DEBUG:
        atexit.register(analysis.write_exit_lines)
    pickling.install()
    encoder.install()
    fused_optimizers.install()
    control_flow.install()
    module_moves.install()
    rematerialize.install()
    dynamo.install()
    imports.when_imported(
        "torch._subclasses.fake_tensor", lambda _: tracing.wrap_fake_tensors(device_module.of_fake_tensor)
    )
    dispatcher.register_device_module("xla", device_module)
    devices.when_started(compile_cache.preload)
    os.register_at_fork(after_in_child=lambda: _lose_devices(module))
    atexit.register(shutdown.at_exit)  # before the next, so that it runs after it
    atexit.register(lambda: module.close(threads=threading.active_count() > 1))
    # Before the executables go, and after the threads that launch programs (feeds, preloading) have ended: those
    # register later, so they end earlier.
    atexit.register(under_way.wait_at_exit)
    atexit.register(background.report_failures)  # what still runs may use devices
    ending.send_queued_values_first()


def _lose_devices(module: ModuleType) -> None:
    if devices.left_behind():
        module.lose_devices(devices.LOST, devices.left_behind())


def _devices_at_most() -> int:
    # Read, but not for good: scripts set the number of devices after importing, too.
    return max(8, Settings.CPU_NUM_DEVICES.read(), Settings.XRT_DEVICE_MAP.read().count("|") + 1)


def _register(module: ModuleType) -> None:
    module.register_special_kernels()
    for name, rule in RULES.items():
        if name not in core.UNRECORDED:
            module.register_recorded(name, rule.bake, rule.random)
    for name in decompose.table():
        # A decomposition is traced with the numbers it was called with: all of them are constants.
        numbers = {a.name for a in dispatcher.schema(decompose.overload(name)).arguments}
        module.register_recorded(name, numbers, False)
    module.register_forms()


_fallen: set[tuple[str, str]] = set()  # ops, and the lines of users that have been told of them


def _on_fallback(op: str) -> None:
    line = frames.user_line()
    if settings.XLA_FALLBACK_WARN and (op, line) not in _fallen:
        _fallen.add((op, line))
        _warn_of_fallback(op, line)
    observer.fallback(op, line)


def _warn_of_fallback(op: str, line: str) -> None:
    warnings.warn(
        f"torch_xla: {op} has no lowering and runs on the CPU (at {line}): its inputs travel from "
        "the device and its results back, at every call. The counter of that name says how often.",
        UserWarning,
        stacklevel=3,
    )
