"""The public names of torch.accelerator, torch.cuda and torch.cuda.amp: counterparts on xla, or why there is none.

``CHECKS`` has a check by behaviour for each name; ``WITHOUT_COUNTERPART`` the other names, with the reason. Both hold
for torch 2.11 to 2.15; a name that the installed torch lacks is still checked where xla has it.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import torch
from torch import nn

import torch_xla

#: Namespace -> the modules of torch whose public names belong to it.
MODULES = {
    "accelerator": ("torch.accelerator", "torch.accelerator.memory", "torch.accelerator.random"),
    "cuda": ("torch.cuda", "torch.cuda.memory", "torch.cuda.random", "torch.cuda.streams"),
    "amp": ("torch.cuda.amp", "torch.amp"),
}

_KNOWN = {path for paths in MODULES.values() for path in paths}


def public_names(namespace: str) -> set[str]:
    """Return the public names of a namespace in the installed torch, without those of the modules of MODULES."""
    found = set()
    for path in MODULES[namespace]:
        try:
            module = importlib.import_module(path)
        except ModuleNotFoundError:  # torch.accelerator.random exists since torch 2.14
            continue
        found |= {name for name in _exported(module) if not _is_tensor_type(name) and f"{path}.{name}" not in _KNOWN}
    return {f"{namespace}.{name}" for name in found}


def _exported(module: ModuleType) -> Iterator[str]:
    own = (name for name, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__)
    yield from getattr(module, "__all__", None) or (name for name in own if not name.startswith("_"))


def _is_tensor_type(name: str) -> bool:
    """Whether it is a legacy type such as ``torch.cuda.FloatTensor``: new code names the dtype and the device."""
    return name.endswith(("Tensor", "Storage"))


#: Stays referenced, so that the device has at least this much memory in use.
_SIZE = 1 << 20


def _buffer() -> torch.Tensor:
    x = torch.ones(_SIZE // 4, device="xla")
    torch_xla.sync(wait=True)
    return x


def _allocated_includes(read: Callable[[], int]) -> bool:
    x = _buffer()
    return read() >= x.nbytes


def _peak_is_reset(reset: Callable[[], Any], peak: Callable[[], int], used: Callable[[], int]) -> bool:
    x = _buffer()
    highest = peak()
    del x
    reset()
    return bool(highest - peak() >= _SIZE // 2 and peak() == used())


def _waits(wait: Callable[[], Any]) -> bool:
    x = torch.ones(64, 64, device="xla")
    for _ in range(10):
        x = x @ x / 64
    event = torch.xla.Event()
    event.record()
    wait()
    return event.query() and bool((x == 1).all())


def _seeds(seed: Callable[[], Any]) -> bool:
    seed()
    first = torch.rand(3, device="xla").tolist()
    seed()
    return first == torch.rand(3, device="xla").tolist()


def _repeats(states: Any, restore: Callable[[Any], Any]) -> bool:
    first = torch.rand(3, device="xla").tolist()
    restore(states)
    return first == torch.rand(3, device="xla").tolist()


def _random_seed(seed: Callable[[], int]) -> bool:
    return seed() != seed() and torch.xla.initial_seed() > 0


def _enters(context: Any) -> bool:
    with context:
        return torch.ones(2, device="xla").device.index == 0 == torch.xla.current_device()


def _sets_this_thread(set_device: Callable[[Any], Any]) -> bool:
    set_device(0)
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(torch.xla.current_device()))
    thread.start()
    thread.join()
    return found == [torch.xla.current_device()] == [0]


def _times(event: Any) -> bool:
    end = torch.xla.Event(enable_timing=True)
    event.record()
    (torch.ones(64, device="xla") + 1).tolist()
    end.record()
    end.synchronize()
    return bool(event.query() and event.elapsed_time(end) > 0)


def _autocast_is_on() -> bool:
    with torch.autocast("xla", dtype=torch.bfloat16):
        return (torch.ones(2, 2, device="xla") @ torch.ones(2, 2, device="xla")).dtype == torch.bfloat16


def _scaler_skips_overflow() -> bool:
    p = nn.Parameter(torch.ones(2, device="xla"))
    optimizer = torch.optim.SGD([p], lr=1.0)
    scaler = torch.amp.GradScaler("xla", init_scale=4.0)
    for factor in (1.0, float("inf")):
        optimizer.zero_grad()
        scaler.scale((p * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    return p.tolist() == [0.0, 0.0] and scaler.get_scale() == 2.0


class _Double(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="xla", cast_inputs=torch.float32)
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.float32 and not torch.is_autocast_enabled("xla")
        return x * 2

    @staticmethod
    @torch.amp.custom_bwd(device_type="xla")
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        assert not torch.is_autocast_enabled("xla")
        return grad * 2


def _custom_function_casts() -> bool:
    x = torch.ones(2, device="xla", dtype=torch.bfloat16, requires_grad=True)
    with torch.autocast("xla", dtype=torch.bfloat16):
        y = _Double.apply(x)  # type: ignore[no-untyped-call]
    y.sum().backward()
    assert x.grad is not None
    return y.dtype == torch.float32 and x.grad.tolist() == [2.0, 2.0]


_a, _x = torch.accelerator, torch.xla  # type: ignore[attr-defined]

CHECKS: dict[str, Callable[[], bool]] = {
    "accelerator.is_available": lambda: _a.is_available(),
    "accelerator.current_accelerator": lambda: _a.current_accelerator(check_available=True) == torch.device("xla"),
    "accelerator.device_count": lambda: _a.device_count() == torch_xla.device_count(),
    "accelerator.current_device_index": lambda: _a.current_device_index() == 0,
    "accelerator.set_device_index": lambda: _sets_this_thread(_a.set_device_index),
    "accelerator.device_index": lambda: _enters(_a.device_index(0)),
    "accelerator.synchronize": lambda: _waits(_a.synchronize),
    "accelerator.current_stream": lambda: _a.current_stream() == _x.Stream(),
    "accelerator.set_stream": lambda: _a.set_stream(_a.current_stream()) is None,
    "accelerator.get_device_capability": lambda: torch.bfloat16 in _a.get_device_capability()["supported_dtypes"],
    "accelerator.empty_cache": lambda: _a.empty_cache() is None,
    "accelerator.empty_host_cache": lambda: _a.empty_host_cache() is None,
    "accelerator.memory_stats": lambda: _allocated_includes(lambda: _a.memory_stats()["allocated_bytes.all.current"]),
    "accelerator.memory_allocated": lambda: _allocated_includes(_a.memory_allocated),
    "accelerator.memory_reserved": lambda: _allocated_includes(_a.memory_reserved),
    "accelerator.max_memory_allocated": lambda: _allocated_includes(_a.max_memory_allocated),
    "accelerator.max_memory_reserved": lambda: _allocated_includes(_a.max_memory_reserved),
    "accelerator.reset_accumulated_memory_stats": lambda: _a.reset_accumulated_memory_stats() is None,
    "accelerator.reset_peak_memory_stats": lambda: _peak_is_reset(
        _a.reset_peak_memory_stats, _a.max_memory_allocated, _a.memory_allocated
    ),
    "accelerator.get_memory_info": lambda: 0 < _a.get_memory_info()[0] <= _a.get_memory_info()[1],
    "accelerator.initial_seed": lambda: _a.random.initial_seed() == _x.initial_seed(),
    "accelerator.get_rng_state": lambda: _repeats(_a.random.get_rng_state(), _x.set_rng_state),
    "accelerator.get_rng_state_all": lambda: _repeats(_a.random.get_rng_state_all(), _x.set_rng_state_all),
    "cuda.Event": lambda: _times(_x.Event(enable_timing=True)),
    "cuda.Stream": lambda: _waits(_x.Stream().synchronize),
    "cuda.StreamContext": lambda: _enters(_x.StreamContext(None)) and _enters(_x.StreamContext(_x.Stream())),
    "cuda.stream": lambda: _enters(_x.stream(_x.current_stream())),
    "cuda.set_stream": lambda: _x.set_stream(_x.current_stream()) is None,
    "cuda.current_stream": lambda: _x.current_stream() == _x.Stream(),
    "cuda.default_stream": lambda: _x.default_stream() == _x.current_stream(),
    "cuda.is_current_stream_capturing": lambda: not _x.is_current_stream_capturing(),
    "cuda.device": lambda: _enters(_x.device(0)) and _enters(_x.device("xla:0")),
    "cuda.device_of": lambda: (
        _enters(_x.device_of(torch.ones(1, device="xla"))) and _enters(_x.device_of(torch.ones(1)))
    ),
    "cuda.current_device": lambda: _x.current_device() == 0,
    "cuda.set_device": lambda: _sets_this_thread(_x.set_device),
    "cuda.device_count": lambda: _x.device_count() == torch_xla.device_count(),
    "cuda.init": lambda: _x.init() is None and _x.is_initialized(),
    "cuda.is_initialized": lambda: _x.is_initialized(),
    "cuda.is_available": lambda: _x.is_available(),
    "cuda.synchronize": lambda: _waits(_x.synchronize),
    "cuda.get_device_name": lambda: _x.get_device_name() == _x.get_device_properties().name,
    "cuda.get_device_properties": lambda: _x.get_device_properties().total_memory == _x.mem_get_info()[1],
    "cuda.get_device_capability": lambda: (
        _x.get_device_capability() == (_x.get_device_properties().major, _x.get_device_properties().minor)
    ),
    "cuda.is_bf16_supported": lambda: _x.is_bf16_supported(),
    "cuda.empty_cache": lambda: _x.empty_cache() is None,
    "cuda.mem_get_info": lambda: 0 < _x.mem_get_info()[0] <= _x.mem_get_info()[1],
    "cuda.memory_stats": lambda: _allocated_includes(lambda: _x.memory_stats()["active_bytes.all.peak"]),
    "cuda.memory_stats_as_nested_dict": lambda: _allocated_includes(
        lambda: _x.memory_stats_as_nested_dict()["reserved_bytes"]["all"]["current"]
    ),
    "cuda.memory_summary": lambda: _allocated_includes(lambda: 2**20 * float(_x.memory_summary().split()[3])),  # type: ignore[arg-type,return-value]
    "cuda.memory_allocated": lambda: _allocated_includes(_x.memory_allocated),
    "cuda.memory_reserved": lambda: _allocated_includes(_x.memory_reserved),
    "cuda.max_memory_allocated": lambda: _allocated_includes(_x.max_memory_allocated),
    "cuda.max_memory_reserved": lambda: _allocated_includes(_x.max_memory_reserved),
    "cuda.reset_peak_memory_stats": lambda: _peak_is_reset(
        _x.reset_peak_memory_stats, _x.max_memory_allocated, _x.memory_allocated
    ),
    "cuda.reset_accumulated_memory_stats": lambda: _x.reset_accumulated_memory_stats() is None,
    "cuda.manual_seed": lambda: _seeds(lambda: _x.manual_seed(3)),
    "cuda.manual_seed_all": lambda: _seeds(lambda: _x.manual_seed_all(3)),
    "cuda.initial_seed": lambda: _x.manual_seed(5) is None and _x.initial_seed() == 5,
    "cuda.seed": lambda: _random_seed(_x.seed),
    "cuda.seed_all": lambda: _random_seed(_x.seed_all),
    "cuda.get_rng_state": lambda: _repeats(_x.get_rng_state(), _x.set_rng_state),
    "cuda.set_rng_state": lambda: _repeats(_x.get_rng_state("xla:0"), lambda state: _x.set_rng_state(state, "xla:0")),
    "cuda.get_rng_state_all": lambda: len(_x.get_rng_state_all()) == _x.device_count(),
    "cuda.set_rng_state_all": lambda: _repeats(_x.get_rng_state_all(), _x.set_rng_state_all),
    "amp.autocast": _autocast_is_on,
    "amp.is_autocast_available": lambda: torch.amp.is_autocast_available("xla"),
    "amp.GradScaler": _scaler_skips_overflow,
    "amp.custom_fwd": _custom_function_casts,
    "amp.custom_bwd": _custom_function_casts,
}

_REASONS = {
    "XLA compiles and schedules programs, and graphs of streams do not exist": "accelerator.Graph cuda.CUDAGraph "
    "cuda.GreenContext cuda.current_graph cuda.export_dot cuda.export_graph_data cuda.graph cuda.graph_pool_handle "
    "cuda.graphs cuda.make_graphed_callables",
    "XLA's allocator is configured by environment variables before the backend starts": "cuda.CUDAPluggableAllocator "
    "cuda.MemPool cuda.MemPoolContext cuda.caching_allocator_alloc cuda.caching_allocator_delete "
    "cuda.caching_allocator_disabled cuda.caching_allocator_enable cuda.change_current_allocator "
    "cuda.get_allocator_backend cuda.get_per_process_memory_fraction cuda.set_per_process_memory_fraction "
    "cuda.use_mem_pool",
    "host memory is not pinned for xla": "cuda.host_memory_stats cuda.host_memory_stats_as_nested_dict "
    "cuda.reset_accumulated_host_memory_stats cuda.reset_peak_host_memory_stats",
    "torch_xla.debug reports live buffers with their provenance, and syncs with their reasons": "cuda.memory_snapshot "
    "cuda.get_sync_debug_mode cuda.set_sync_debug_mode",
    "it reads NVIDIA's or AMD's management library": "cuda.clock_rate cuda.device_memory_used cuda.list_gpu_processes "
    "cuda.memory_usage cuda.power_draw cuda.temperature cuda.utilization",
    "it exposes CUDA's runtime or its libraries": "cuda.check_error cuda.cudart cuda.cudaStatus "
    "cuda.current_blas_handle cuda.current_solver_handle cuda.get_arch_list cuda.get_gencode_flags "
    "cuda.has_half cuda.has_magma cuda.sparse cuda.is_tf32_supported cuda.CudaError cuda.DeferredCudaCallError",
    "devices are not addressed by peers, other processes or other libraries": "cuda.can_device_access_peer "
    "cuda.ipc_collect cuda.ExternalStream cuda.get_stream_from_external",
    "torch.distributed has the collectives of all backends": "cuda.nccl",
    "torch.xla.get_rng_state and set_rng_state hold the whole random state of a device": "cuda.default_generators",
    "torch_xla.debug.profiler annotates and records traces": "cuda.nvtx cuda.profiler cuda.graph_annotations",
    "torch_xla.experimental.custom_kernel has user-defined kernels": "cuda.jiterator",
    "XLA chooses the kernels of matrix products": "cuda.tunable",
    "torch.OutOfMemoryError is the name for all devices": "cuda.OutOfMemoryError",
    "deprecated by torch": "accelerator.current_device_idx accelerator.set_device_idx cuda.memory_cached "
    "cuda.max_memory_cached cuda.reset_max_memory_allocated cuda.reset_max_memory_cached "
    "amp.amp_definitely_not_available",
}

#: Name -> why xla has no counterpart.
WITHOUT_COUNTERPART = {name: reason for reason, names in _REASONS.items() for name in names.split()}


def is_defined(name: str) -> bool:
    """Whether the check of a name can run: those of torch.accelerator need the function in the installed torch."""
    namespace = name.partition(".")[0]
    return namespace != "accelerator" or name in public_names(namespace)
