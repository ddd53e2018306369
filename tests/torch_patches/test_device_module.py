"""torch.xla: the device-neutral functions of torch.cuda."""

from __future__ import annotations

import inspect

import pytest
import torch

import torch_xla
from tests.support.helpers import run_script


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
    assert str(round(used / 2**20, 1)) in torch.xla.memory_summary(0)
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
