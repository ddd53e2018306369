"""``xm``: devices, the step barrier, collectives, optimizer steps and random state, under upstream's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from torch_xla import torch_xla as _top
from torch_xla._engine import recorder as _recorder
from torch_xla._engine.device import devices as _devices
from torch_xla._engine.diagnostics import device_memory as _memory
from torch_xla._engine.execution import executor as _executor
from torch_xla._engine.execution import pending_graph as _pending
from torch_xla._engine.job import replicas as _replicas
from torch_xla.core._buckets import CoalescingBuckets, all_gather_bucketized, reduce_scatter_bucketized
from torch_xla.core._collectives import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    Groups,
    all_gather,
    all_reduce,
    all_to_all,
    collective_broadcast,
    collective_permute,
    ragged_all_to_all,
    reduce_scatter,
)
from torch_xla.core._gradients import (
    _fetch_gradients,
    all_reduce_bucketized_gradients,
    broadcast_master_param,
    reduce_gradients,
)
from torch_xla.core._ordinals import (
    do_on_ordinals,
    get_local_ordinal,
    get_ordinal,
    is_master_ordinal,
    master_print,
    mesh_reduce,
    rendezvous,
    xla_rendezvous,
    xrt_world_size,
)
from torch_xla.core._send_recv import recv, send
from torch_xla.core._step_utils import MemoryInfo as MemoryInfo
from torch_xla.core._step_utils import RateTracker as RateTracker
from torch_xla.core._step_utils import add_step_closure as add_step_closure
from torch_xla.core._step_utils import fork_rng as fork_rng
from torch_xla.core._step_utils import set_replication as set_replication
from torch_xla.core.transfers import ToXlaTensorArena as ToXlaTensorArena
from torch_xla.core.transfers import _maybe_convert_to_cpu as _maybe_convert_to_cpu
from torch_xla.core.transfers import check_view_sharing as check_view_sharing
from torch_xla.core.transfers import save as save
from torch_xla.core.transfers import send_cpu_data_to_device as send_cpu_data_to_device


def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """Return an xla device and make it the current device of this thread.

    Args:
      n: device ordinal; default: the current device.
      devkind: required device type: ``CPU``, ``TPU`` or ``CUDA``.

    Raises:
      RuntimeError: no device of this type exists, or no device with this ordinal (then also an IndexError).

    Examples:
      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> device = xm.xla_device()
      >>> torch.ones(2, device=device).device
      device(type='xla', index=0)
    """
    if devkind is not None and not get_xla_supported_devices(devkind):
        raise RuntimeError(f"xla_device: no {devkind} device found; available: {', '.join(_top.real_devices())}")
    device = _top.device(n)
    if n is not None:
        _recorder.bindings().set_current_device(device.index)
    return device


def get_xla_supported_devices(devkind: str | None = None, max_devices: int | None = None) -> list[str] | None:
    """Return the names of the xla devices, of one device type if requested; None if there are none.

    Args:
      devkind: ``CPU``, ``TPU`` or ``CUDA``; default: any type.
      max_devices: maximum number of names; default: all.

    Returns:
      The names of the devices by ordinal, or None.
    """
    kinds = [real.split(":")[0] for real in _top.real_devices()]
    names = [f"xla:{i}" for i, kind in enumerate(kinds) if devkind in (None, kind)]
    return names[:max_devices] or None


def xla_real_devices(devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Return the hardware device of each given xla device (default: all), such as ``CPU:0``.

    Args:
      devices: xla devices or their names; default: all of this process.
    """
    real = _top.real_devices()
    return real if devices is None else [real[_recorder.ordinal(d)] for d in devices]


def xla_replication_devices(local_devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Return the devices of all replicas of the job, in order of ordinals, such as ``["CPU:0", "CPU:1"]``.

    Args:
      local_devices: the xla devices of this process that are replicas; default: all. They must be of one type.

    Raises:
      RuntimeError: the devices are of several types, or a job of several processes does not use all devices of this
        process.
    """
    here = xla_real_devices(local_devices)
    kinds = {name.split(":")[0] for name in here}
    if len(kinds) > 1:
        raise RuntimeError(f"xla_replication_devices: replicas must be of one device type, got {', '.join(here)}")
    processes = _replicas.process_count()
    if processes == 1:
        return sorted(here, key=lambda name: int(name.split(":")[1]))
    if len(here) != len(_top.real_devices()):
        raise RuntimeError(
            f"xla_replication_devices: got {len(here)} of this process's {len(_top.real_devices())} devices in a job "
            f"of {processes} processes; pass all of them"
        )
    return [f"{kind}:{number}" for kind in kinds for number in range(processes * len(here))]


def xla_device_hw(device: torch.device | str) -> str:
    """Return the device type of an xla device: ``CPU``, ``CUDA`` or ``TPU``.

    Args:
      device: an xla device or its name.
    """
    return xla_real_devices([device])[0].split(":")[0]


def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """Return whether the tensor is on an xla device.

    Args:
      tensor: a tensor on any device.
    """
    return tensor.device.type == "xla"


def mark_step(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the step barrier; equivalent to [torch_xla.sync][].

    Args:
      wait: return only after the device has finished.
      reset_scope: accepted for compatibility.

    Examples:
      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> x = torch.ones(2, device="xla") + 1
      >>> xm.mark_step()
      >>> x.tolist()
      [2.0, 2.0]
    """
    _top.sync(wait, reset_scope)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Wait until all operations that were started on the devices (default: all) have finished.

    Args:
      devices: names of xla devices; default: all. Pending operations that no barrier has started stay pending.

    Examples:
      Measure the time of a step on the device:

      >>> import time
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.core.xla_model as xm
      >>> x = torch.ones(64, 64, device="xla")
      >>> torch_xla.sync()
      >>> xm.wait_device_ops()
      >>> start = time.perf_counter()
      >>> y = x @ x
      >>> torch_xla.sync()
      >>> xm.wait_device_ops()
      >>> seconds = time.perf_counter() - start
    """
    if devices:
        for name in devices:
            _executor.wait_device(_recorder.ordinal(name))
    else:
        _executor.for_each_device(_executor.wait_device)


def unlazy(tensors: Sequence[torch.Tensor]) -> None:
    """Compute the values of the tensors and wait for them.

    Args:
      tensors: tensors of any shape and dtype; those that are not on xla are ignored.
    """
    for device in {t.device.index for t in tensors if is_xla_tensor(t)}:
        nodes = _recorder.bindings().nodes_of([t for t in tensors if t.device.index == device])
        _executor.materialize(nodes, device)
        _executor.wait_device(device)


def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: dict[str, Any] | None = None,
    groups: Groups = None,
    pin_layout: bool = True,
) -> Any:
    """Average the gradients over the replicas, then call ``optimizer.step(**optimizer_args)``.

    Do not use it with [FSDP][torch_xla.distributed.fsdp.XlaFullyShardedDataParallel] or
    [ZeRO][torch_xla.distributed.zero_redundancy_optimizer.ZeroRedundancyOptimizer], which average gradients themselves.

    Args:
      optimizer: the optimizer.
      barrier: run the step barrier afterwards.
      optimizer_args: keyword arguments of ``optimizer.step``.
      groups: replica groups, as lists of ordinals; None is one group of all replicas.
      pin_layout: accepted for compatibility.

    Returns:
      The result of ``optimizer.step``.

    Examples:
      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> model = torch.nn.Linear(2, 1, bias=False).to("xla")
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
      >>> weight = torch.nn.init.ones_(model.weight)
      >>> model(torch.ones(1, 2, device="xla")).sum().backward()
      >>> xm.optimizer_step(optimizer, barrier=True)
      >>> model.weight.tolist()
      [[0.5, 0.5]]
    """
    reduce_gradients(optimizer, groups, pin_layout)
    loss = optimizer.step(**(optimizer_args or {}))
    if barrier:
        mark_step()
    return loss


def set_rng_state(seed: int, device: torch.device | str | None = None) -> None:
    """Set the random number state of a device (default: the current one) to a 64-bit integer.

    Args:
      seed: the state, a 64-bit integer, such as one that get_rng_state returned.
      device: an xla device or its name; default: the current device.

    Examples:
      >>> import torch_xla.core.xla_model as xm
      >>> xm.set_rng_state(1234)
      >>> xm.get_rng_state()
      1234
    """
    _top.manual_seed(seed, device)


def get_rng_state(device: torch.device | str | None = None) -> int:
    """Return the random number state of a device as an integer that set_rng_state takes.

    Args:
      device: an xla device or its name; default: the current device.

    Examples:
      Save the state, and draw the same numbers again:

      >>> import torch
      >>> import torch_xla.core.xla_model as xm
      >>> state = xm.get_rng_state()
      >>> first = torch.rand(3, device="xla").cpu()
      >>> xm.set_rng_state(state)
      >>> torch.equal(torch.rand(3, device="xla").cpu(), first)
      True
    """
    return int(_recorder.bindings().get_seed(_recorder.ordinal(device)))


def xla_device_kind(device: torch.device | str | None = None) -> str:
    """Return the vendor's name of the hardware of a device.

    Args:
      device: an xla device or its name; default: the current device.
    """
    return _devices.device_kind(_recorder.ordinal(device))


def get_stablehlo(tensors: Sequence[torch.Tensor] | None = None) -> str:
    """Return the StableHLO text of the graph of ``tensors``, or of all pending operations of the current device.

    Its arguments are the scalars of the graph (float64[n], int64[m]), then the tensors that it reads. Nothing runs.

    Args:
      tensors: xla tensors of one device; default: all pending operations of the current device.

    Raises:
      ValueError: the tensors are not on one xla device.
    """
    return _pending.render_pending("get_stablehlo", tensors, "stablehlo")


def get_stablehlo_bytecode(tensors: Sequence[torch.Tensor] | None = None) -> bytes:
    """Return the graph of get_stablehlo as MLIR bytecode.

    Args:
      tensors: the tensors whose graph is returned; none: all pending ones.
    """
    return _pending.pending_bytecode("get_stablehlo_bytecode", tensors)


def get_memory_info(device: torch.device | str | None = None) -> dict[str, int]:
    """Return the memory use of a device (default: the current one), on every backend.

    [torch_xla.debug.memory.summary][] lists the memory by source location.

    Args:
      device: an xla device or its name; default: the current device.

    Returns:
      ``bytes_used``, ``bytes_limit`` and ``peak_bytes_used``, and ``kb_free`` and ``kb_total`` in KB of 1024 bytes, as
      in older releases. On the CPU, ``bytes_used`` is the size of this process's buffers, and the limit is the memory
      of the host.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.core.xla_model as xm
      >>> x = torch.zeros(1024, 1024, device="xla")  # 4 MiB
      >>> torch_xla.sync(wait=True)
      >>> info = xm.get_memory_info()
      >>> info["bytes_used"] >= 4 * 2**20
      True
    """
    return _memory.memory_info(_recorder.ordinal(device))


def optimization_barrier_(tensors: Sequence[torch.Tensor]) -> None:
    """Compute all of the tensors before any later operation that reads one of them; XLA moves no operation across.

    Operates in place; autograd and tensor versions do not change. An empty list is a no-op.

    Args:
      tensors: xla tensors of any shape and dtype.

    Raises:
      ValueError: a tensor is not on an xla device.
    """
    if not tensors:
        return
    for t in tensors:
        if t.device.type != "xla":
            raise ValueError(f"optimization_barrier_: expected xla tensors, got {t.dtype}{list(t.shape)} on {t.device}")
    with torch.no_grad():
        kept = torch.ops.torch_xla.optimization_barrier([t.detach() for t in tensors])
        for t, value in zip(tensors, kept, strict=True):
            t.data.copy_(value)  # .data has a separate version counter, so values saved for backward stay valid
