"""The targets of ahead-of-time compilation: TPU topologies by shape, GPUs by name.

v5e:4x4, v5p:4x4x4, v4:2x2x1, v6e    a TPU slice of this shape; one chip without a shape
h100, a100:8                         this number of GPUs; one without a number

The compilers are libtpu and jax's CUDA plugin. Neither requires an accelerator or a network.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import math
import os
import re
from dataclasses import dataclass

import jax
from jax.experimental import topologies

from torch_xla._engine.aot import arguments, hardware_specs
from torch_xla._engine.aot.hardware_specs import ChipSpec
from torch_xla._engine.aot.suppress_output import suppress_stderr

#: Number of chips of one host, for shapes that libtpu divides among hosts.
_MACHINE = 4
#: jax's GPU plugins: package -> module that registers it with jax.
_PLUGINS = {"jax_cuda12_plugin": "jax_plugins.xla_cuda12", "jax_cuda13_plugin": "jax_plugins.xla_cuda13"}
_NAME = re.compile(r"([a-z0-9-]+?)(?::(\d+(?:x\d+){0,2}))?")


class MissingCompilerError(RuntimeError):
    """Raised when the compiler of a target is not installed."""


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """Devices to compile for. ``devices`` support compilation only; ``platform`` is ``tpu`` or ``gpu``."""

    name: str
    platform: str
    chip: ChipSpec
    devices: tuple[jax.Device, ...]

    @property
    def hosts(self) -> int:
        """The number of hosts of the devices."""
        return len({device.process_index for device in self.devices})

    def __str__(self) -> str:
        count = len(self.devices)
        machines = f" in {self.hosts} machines" if self.hosts > 1 else ""
        return f"{self.name}: {count} × {self.chip.title}{machines}"


@functools.cache
def get_target(name: str) -> Target:
    """Return the target with this name.

    Args:
      name: a chip and, optionally, a topology: ``v5e``, ``v5p:4x4x4``, ``h100:8``.

    Raises:
      ValueError: the name is invalid, or the topology does not exist.
      MissingCompilerError: the compiler of the target is not installed.
    """
    found = _NAME.fullmatch(name.strip().lower())
    chip, shape = (found[1], found[2]) if found else ("", None)
    if chip in hardware_specs.TPUS:
        return _tpu(name, hardware_specs.TPUS[chip], [int(n) for n in (shape or "1x1").split("x")])
    if chip in hardware_specs.GPUS and "x" not in (shape or ""):
        return _gpu(name, hardware_specs.GPUS[chip], int(shape or 1))
    raise ValueError(f"target {name!r}: expected {arguments.supported_targets()}")


def _tpu(name: str, chip: ChipSpec, shape: list[int]) -> Target:
    if importlib.util.find_spec("libtpu") is None:
        raise MissingCompilerError(f"target {name}: libtpu is not installed; pip install 'jax[tpu]'")
    options: dict[str, object] = {}
    if chip.name in ("v4", "v5p"):
        shape = shape + [1] * (3 - len(shape))
        options["chip_config_name"] = "megacore"  # one device per chip, as in jax on a TPU host
    if math.prod(shape) < _MACHINE:
        options["chips_per_host_bounds"] = [*shape, 1, 1][:3]
    _isolate_libtpu()
    layout = f"{chip.name}:{'x'.join(map(str, shape))}"
    try:
        with suppress_stderr():
            found = topologies.get_topology_desc(layout, platform="tpu", **options)
    except Exception as error:
        raise ValueError(f"target {name}: libtpu does not support this topology: {error}") from error
    return Target(name, "tpu", chip, tuple(found.devices))


def _isolate_libtpu() -> None:
    """Configure libtpu to search no TPU in the network, log only errors, and ignore locks of other processes."""
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    os.environ.setdefault("ALLOW_MULTIPLE_LIBTPU_LOAD", "1")
    os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")


def _gpu(name: str, chip: ChipSpec, count: int) -> Target:
    plugin = next((module for package, module in _PLUGINS.items() if importlib.util.find_spec(package)), None)
    if plugin is None:
        raise MissingCompilerError(f"target {name}: jax's CUDA plugin is not installed; pip install 'jax[cuda12]'")
    options = {"target_config": hardware_specs.gpu_target_config(chip.name), "topology": f"1x1x{count}"}
    try:
        with suppress_stderr():
            try:
                found = topologies.get_topology_desc("", platform="cuda", **options)
            except NotImplementedError:
                _register(plugin)
                found = topologies.get_topology_desc("", platform="cuda", **options)
    except Exception as error:
        raise ValueError(f"target {name}: jax's CUDA plugin does not support this topology: {error}") from error
    return Target(name, "gpu", chip, tuple(found.devices))


def _register(plugin: str) -> None:
    """Register a plugin that jax skipped because there is no GPU driver, which compilation does not require."""
    variable = "JAX_SKIP_CUDA_CONSTRAINTS_CHECK"
    before = os.environ.get(variable)
    os.environ[variable] = "1"
    try:
        importlib.import_module(plugin).initialize()
    finally:
        if before is None:
            del os.environ[variable]
