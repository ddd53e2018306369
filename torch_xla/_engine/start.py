"""What importing torch_xla does to the process: loads the recorder, registers the ops, installs the hooks.

Starts no backend and no thread: processes fork after importing.
"""

from __future__ import annotations

import atexit
import threading
import warnings
from types import ModuleType

import torch

from torch_xla._engine import (
    barrier,
    buffers,
    decompose,
    device_module,
    devices,
    executor,
    frames,
    module_moves,
    pickling,
    recorder,
    seeding,
)
from torch_xla._engine.lowering import RULES, load_rules
from torch_xla._engine.settings import settings

_started = False


def start() -> None:
    """Makes ``xla`` a device of this process; once."""
    global _started
    if _started:
        return
    _started = True
    load_rules()
    module = recorder.module()
    module.set_hooks(
        device_count=lambda: len(devices.devices()),
        upload=buffers.upload,
        download=buffers.download,
        transfer=buffers.transfer,
        materialize=executor.materialize,
        cut=barrier.cut,
        fallback=_on_fallback,
    )
    module.set_constant_numbers(not settings.XLA_NO_SPECIAL_SCALARS)
    module.set_pending_limit(settings.XLA_TRIM_GRAPH_SIZE)
    module.set_advertised_devices(max(8, settings.CPU_NUM_DEVICES))
    _register(module)
    barrier.install()
    seeding.install()
    pickling.install()
    module_moves.install()
    torch._register_device_module("xla", device_module)
    atexit.register(lambda: module.close(threads=threading.active_count() > 1))


def _register(module: ModuleType) -> None:
    module.register_special_kernels()
    for name, rule in RULES.items():
        if not name.startswith("torch_xla::"):
            module.register_recorded(name, rule.bake, rule.random)
    for name in decompose.table():
        # A decomposition is traced with the numbers it was called with: all of them are constants.
        numbers = {a.name for a in decompose.overload(name)._schema.arguments}
        module.register_recorded(name, numbers, False)
    module.register_forms()


_fallen: set[str] = set()


def _on_fallback(op: str) -> None:
    if op in _fallen or not settings.XLA_FALLBACK_WARN:
        return
    _fallen.add(op)
    warnings.warn(
        f"torch_xla: {op} has no lowering and runs on the CPU (first at {frames.user_line()}): its inputs travel from "
        "the device and its results back, at every call. The counter of that name says how often.",
        UserWarning,
        stacklevel=2,
    )
