"""torch.xla: the device-neutral functions of torch.cuda."""

from __future__ import annotations

import inspect

import pytest
import torch

import torch_xla
from tests.support.helpers import run_script

#: Functions of torch.cuda that torch.xla lacks, and why.
LACKING = {
    "graphs of streams": "CUDAGraph GreenContext current_graph graph graph_pool_handle make_graphed_callables "
    "MemPool MemPoolContext",
    "torch.cuda's allocator": "CUDAPluggableAllocator caching_allocator_alloc caching_allocator_delete "
    "caching_allocator_disabled caching_allocator_enable change_current_allocator get_allocator_backend "
    "get_per_process_memory_fraction "
    "host_memory_stats host_memory_stats_as_nested_dict list_gpu_processes memory_cached memory_snapshot "
    "memory_stats_as_nested_dict memory_summary max_memory_cached reset_accumulated_host_memory_stats "
    "reset_accumulated_memory_stats reset_max_memory_allocated reset_max_memory_cached reset_peak_host_memory_stats "
    "set_per_process_memory_fraction use_mem_pool",
    "NVIDIA's libraries": "current_blas_handle current_solver_handle check_error clock_rate cudart "
    "cudaStatus device_memory_used get_arch_list "
    "get_gencode_flags is_tf32_supported power_draw temperature utilization memory_usage",
    "peers, processes and streams of other libraries": "can_device_access_peer device_of ExternalStream "
    "get_stream_from_external ipc_collect StreamContext",
    "torch.cuda's start": "init CudaError DeferredCudaCallError OutOfMemoryError get_sync_debug_mode "
    "set_sync_debug_mode",
}


def test_names_of_torch_cuda() -> None:
    names = {
        name
        for name in torch.cuda.__all__
        if callable(getattr(torch.cuda, name)) and not name.endswith(("Tensor", "Storage"))
    }
    lacking = {name for group in LACKING.values() for name in group.split()}
    missing = {name for name in names if not hasattr(torch.xla, name)}  # type: ignore[attr-defined]
    assert missing - lacking == set()
    assert {name for name in lacking if hasattr(torch.xla, name)} == set()  # type: ignore[attr-defined]


def test_properties() -> None:
    properties = torch.xla.get_device_properties()
    assert properties.name == torch.xla.get_device_name(0) and properties.total_memory > 2**20
    assert (properties.major, properties.minor) == torch.xla.get_device_capability("xla:0")
    assert torch.xla.is_bf16_supported() and torch.bfloat16 in torch.xla.get_amp_supported_dtype()
    free, total = torch.xla.mem_get_info()
    assert 0 < free <= total == properties.total_memory


def test_memory_and_its_peak() -> None:
    before = torch.xla.memory_allocated()
    x = torch.zeros(1 << 20, device="xla")
    torch_xla.sync(wait=True)
    used, size = torch.xla.memory_allocated(), 4 << 20
    assert used - before >= size and torch.xla.max_memory_allocated() >= used
    del x
    torch.xla.reset_peak_memory_stats()
    assert torch.xla.max_memory_allocated() == torch.xla.memory_allocated() < used
    y = torch.ones(1 << 20, device="xla") * 2
    torch_xla.sync(wait=True)
    assert y[0].item() == 2 and torch.xla.max_memory_allocated() - torch.xla.memory_allocated() < size
    stats = torch.xla.memory_stats()
    assert stats["allocated_bytes.all.peak"] == torch.xla.max_memory_reserved() >= before + size


def test_seeds() -> None:
    assert torch.xla.seed() == torch.xla.initial_seed()
    assert torch.xla.seed_all() == torch.xla.initial_seed()
    states = torch.xla.get_rng_state_all()
    first = torch.rand(3, device="xla").tolist()
    torch.xla.set_rng_state_all(states)
    assert torch.rand(3, device="xla").tolist() == first


def test_events_are_positions_in_the_order_of_programs() -> None:
    start, end = (torch.xla.Event(enable_timing=True) for _ in range(2))
    assert start.query()
    with pytest.raises(ValueError, match="must be recorded"):
        start.elapsed_time(end)
    x = torch.randn(300, 300, device="xla")
    torch_xla.sync()
    start.record()
    y = x
    for _ in range(20):
        y = torch.tanh(y @ x)
    end.record()
    torch.xla.current_stream().wait_event(end)
    end.synchronize()
    assert end.query() and start.elapsed_time(end) > 0 > end.elapsed_time(start)
    assert torch.isfinite(y).all()


def test_streams_of_a_device_are_one() -> None:
    stream = torch.xla.Stream(device="xla:0", priority=-1)
    assert stream == torch.xla.current_stream() == torch.xla.default_stream(0) and stream.device_index == 0
    with torch.xla.stream(stream):
        x = torch.ones(3, device="xla") + 1
    stream.wait_stream(torch.xla.current_stream())
    event = stream.record_event()
    stream.synchronize()
    event.wait(stream)
    assert event.query() and stream.query() and x.tolist() == [2.0] * 3
    assert not torch.xla.is_current_stream_capturing()


FORKED = """
import os, torch, torch_xla
assert not torch.xla._is_in_bad_fork()
child = os.fork()
if child == 0:
    os._exit(10 + torch.xla._is_in_bad_fork())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 10
torch.ones(2, device="xla").tolist()
child = os.fork()
if child == 0:
    os._exit(10 + torch.xla._is_in_bad_fork())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 11
"""


def test_bad_forks() -> None:
    run_script(FORKED)


def test_every_function_is_documented() -> None:
    names = [name for name in torch.xla.__all__ if not inspect.getdoc(getattr(torch.xla, name))]
    assert names == []
