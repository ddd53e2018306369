"""Every public function that takes a device or an ordinal raises for one that does not exist.

The functions are found by their signatures; the first test fails if a new one is not called here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.debug import memory

MODULES: dict[str, ModuleType] = {"torch.xla": torch.xla, "torch_xla": torch_xla, "xr": xr, "xm": xm, "memory": memory}
_PARAMETERS = {"which", "device", "devices", "index", "n", "ordinal", "local_devices"}


def _with_block(context: Any) -> None:
    with context:
        pass


_STATE = torch.zeros(16, dtype=torch.uint8)
CALLS: dict[str, Callable[[Any], Any]] = {
    "torch.xla.set_device": torch.xla.set_device,
    "torch.xla.device": lambda d: _with_block(torch.xla.device(d)),
    "torch.xla.synchronize": torch.xla.synchronize,
    "torch.xla.get_rng_state": torch.xla.get_rng_state,
    "torch.xla.set_rng_state": lambda d: torch.xla.set_rng_state(_STATE, d),
    "torch.xla.Stream": torch.xla.Stream,
    "torch.xla.current_stream": torch.xla.current_stream,
    "torch.xla.default_stream": torch.xla.default_stream,
    "torch.xla.get_device_capability": torch.xla.get_device_capability,
    "torch.xla.get_device_name": torch.xla.get_device_name,
    "torch.xla.get_device_properties": torch.xla.get_device_properties,
    "torch.xla.max_memory_allocated": torch.xla.max_memory_allocated,
    "torch.xla.max_memory_reserved": torch.xla.max_memory_reserved,
    "torch.xla.mem_get_info": torch.xla.mem_get_info,
    "torch.xla.memory_allocated": torch.xla.memory_allocated,
    "torch.xla.memory_reserved": torch.xla.memory_reserved,
    "torch.xla.memory_stats": torch.xla.memory_stats,
    "torch.xla.memory_stats_as_nested_dict": torch.xla.memory_stats_as_nested_dict,
    "torch.xla.memory_summary": torch.xla.memory_summary,
    "torch.xla.reset_accumulated_memory_stats": torch.xla.reset_accumulated_memory_stats,
    "torch.xla.reset_peak_memory_stats": torch.xla.reset_peak_memory_stats,
    "torch_xla.device": torch_xla.device,
    "torch_xla.manual_seed": lambda d: torch_xla.manual_seed(0, d),
    "xr.xla_device": xr.xla_device,
    "xr.runtime_device_attributes": xr.runtime_device_attributes,
    "xm.fork_rng": lambda d: _with_block(xm.fork_rng(d)),
    "xm.set_replication": lambda d: xm.set_replication(d, [d]),
    "xm.send_cpu_data_to_device": lambda d: xm.send_cpu_data_to_device(torch.zeros(2), d),
    "xm.xla_device": xm.xla_device,
    "xm.xla_real_devices": lambda d: xm.xla_real_devices([d]),
    "xm.xla_replication_devices": lambda d: xm.xla_replication_devices([d]),
    "xm.xla_device_hw": xm.xla_device_hw,
    "xm.wait_device_ops": lambda d: xm.wait_device_ops([d]),
    "xm.set_rng_state": lambda d: xm.set_rng_state(0, d),
    "xm.get_rng_state": xm.get_rng_state,
    "xm.xla_device_kind": xm.xla_device_kind,
    "xm.get_memory_info": xm.get_memory_info,
    "memory.buffers": memory.buffers,
    "memory.summary": memory.summary,
    "memory.no_leak": lambda d: _with_block(memory.no_leak(d)),
}
#: Functions that take a negative number as the current device, as torch.cuda does.
_LEAVES = {"torch.xla.set_device", "torch.xla.device"} | {
    f"torch.xla.{name}"
    for name in (
        "Stream", "current_stream", "default_stream", "get_device_capability", "get_device_name",
        "get_device_properties", "max_memory_allocated", "max_memory_reserved", "mem_get_info", "memory_allocated",
        "memory_reserved", "memory_stats", "memory_stats_as_nested_dict", "memory_summary",
        "reset_accumulated_memory_stats", "reset_peak_memory_stats",
    )
}  # fmt: skip
#: Moves data to devices of other types as well, as ``Tensor.to`` does.
_OTHER_TYPES = {"xm.send_cpu_data_to_device"}
#: A device whose type has no such index, a number that is none, another type, no device at all.
WRONG = [-1, -3, 99, 2**40, "xla:99", "xla:-1", "cpu", "cuda:0", torch.device("cpu"), "nonsense", 1.5, b"x"]


def _found() -> Iterator[str]:
    for title, module in MODULES.items():
        for name, function in vars(module).items():
            is_of_package = str(getattr(function, "__module__", "")).startswith("torch_xla")
            callable_ = inspect.isfunction(function) or type(function) is type and not issubclass(function, Exception)
            if name.startswith("_") or name == "make_fake_tensor" or not is_of_package or not callable_:
                continue
            if _PARAMETERS & set(inspect.signature(function).parameters):
                yield f"{title}.{name}"


def test_every_function_that_takes_a_device_is_called_here() -> None:
    assert set(_found()) == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_what_is_no_device_is_rejected(name: str) -> None:
    for wrong in WRONG:
        if name in _LEAVES and isinstance(wrong, int) and wrong < 0:
            CALLS[name](wrong)
            assert torch.xla.current_device() == 0
            continue
        if name in _OTHER_TYPES and str(wrong).split(":")[0] in ("cpu", "cuda"):
            continue
        try:
            CALLS[name](wrong)
        except (RuntimeError, IndexError, TypeError):
            continue
        pytest.fail(f"{name}({wrong!r}) returned")
    CALLS[name]("xla:0")


def test_device_module_has_only_its_public_names() -> None:
    """``torch.xla`` is what torch's device-generic code uses; users list its names."""
    module = torch.get_device_module("xla")
    assert (module, module.__name__) == (torch.xla, "torch.xla")
    assert [name for name in dir(module) if not name.startswith("_")] == sorted(module.__all__)
    assert module._initialized and not hasattr(module, "Any")
