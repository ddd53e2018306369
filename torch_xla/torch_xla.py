"""Devices, the step barrier, compilation, and process launch: the functions of the ``torch_xla`` package."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ContextDecorator, contextmanager
from typing import Any, ParamSpec, TypeVar, overload

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks
from torch_xla._engine.device import devices as _devices
from torch_xla._engine.diagnostics import sync_reasons
from torch_xla._engine.execution import barrier
from torch_xla._engine.execution import compile_region as _regions
from torch_xla._engine.job import replicas as _replicas
from torch_xla._engine.replay import replayed_function
from torch_xla._engine.torch_patches import manual_seed as _seeding

P = ParamSpec("P")
R = TypeVar("R")


@dynamo_hooks.graph_break
def device(index: int | None = None) -> torch.device:
    """Return the xla device with this ordinal; default: the current one.

    Args:
      index: ordinal of the device; None is the current device of this thread.

    Raises:
      IndexError, RuntimeError: the device does not exist (the exception is an instance of both).

    Examples:
      >>> import torch_xla
      >>> torch_xla.device()
      device(type='xla', index=0)
    """
    return torch.device("xla", recorder.ordinal(index))


@dynamo_hooks.graph_break
def devices() -> list[torch.device]:
    """Return all xla devices of this process.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch_xla
      >>> [str(device) for device in torch_xla.devices()]
      ['xla:0', 'xla:1', 'xla:2', 'xla:3']
    """
    return [torch.device("xla", i) for i in range(device_count())]


@dynamo_hooks.graph_break
def device_count() -> int:
    """Return the number of xla devices of this process. Starts the backend.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch_xla
      >>> torch_xla.device_count()
      4
    """
    return _devices.count()


@dynamo_hooks.graph_break
def real_devices() -> list[str]:
    """Return the hardware device of each xla device, such as ``CPU:0`` or ``TPU:3``.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch_xla
      >>> torch_xla.real_devices()
      ['CPU:0', 'CPU:1', 'CPU:2', 'CPU:3']
    """
    return [_devices.hardware_name(i) for i in range(device_count())]


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """Run the step barrier: start all pending operations as one program, which is compiled or found in the cache.

    By default the first run of a graph on a CPU device is interpreted, op by op; see
    ``TORCH_XLA_COMPILE_POLICY``. [step][torch_xla.step] and
    [MpDeviceLoader][torch_xla.distributed.parallel_loader.MpDeviceLoader] run the same barrier.

    Args:
      wait: return only after the device has finished (``XLA_SYNC_WAIT=1``: in every sync), and the step closures that
        run on a separate thread.
      reset_scope: accepted for compatibility.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> x = torch.arange(3, device="xla")
      >>> y = x * 2 + 1  # recorded
      >>> torch_xla.sync()  # compiled, or found in the cache, and started
      >>> y.tolist()  # waits for the values
      [1, 3, 5]
    """
    del reset_scope
    barrier.mark_step(wait)


@contextmanager
def step() -> Iterator[None]:
    """Run a step barrier before and after the block, also if it raises.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> model = torch.nn.Linear(2, 1).to("xla")
      >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
      >>> for _ in range(3):
      ...     with torch_xla.step():
      ...         optimizer.zero_grad()
      ...         loss = model(torch.ones(4, 2, device="xla")).sum()
      ...         loss.backward()
      ...         optimizer.step()
    """
    with sync_reasons.sync_reason(sync_reasons.STEP):
        sync()
    try:
        yield
    finally:
        with sync_reasons.sync_reason(sync_reasons.STEP):
            sync()


@overload
def compile(f: None = None, full_graph: bool = False, name: str | None = None,
            max_different_graphs: int | None = None, *, replay: bool = False) -> ContextDecorator: ...  # fmt: skip
@overload
def compile(f: Callable[P, R], full_graph: bool = False, name: str | None = None,
            max_different_graphs: int | None = None, *, replay: bool = False) -> Callable[P, R]: ...  # fmt: skip
def compile(
    f: Callable[P, R] | None = None, full_graph: bool = False, name: str | None = None,
    max_different_graphs: int | None = None, *, replay: bool = False,
) -> Callable[P, R] | ContextDecorator:  # fmt: skip
    """Compile a function as one graph, also in eager mode; operations that are pending before it run first.

    Use it as a decorator (``@torch_xla.compile``, ``@torch_xla.compile(full_graph=True)``), a wrapper
    (``step = torch_xla.compile(step)``) or a context manager (``with torch_xla.compile(): ...``).

    Args:
      f: the function; None for the decorator with arguments and for the context manager.
      full_graph: require one graph, which no line of the function may run in part by reading a value.
      name: name for messages; default: the name of the function. Contexts with the same name share a graph count.
      max_different_graphs: maximum number of different graphs that are compiled; wrappers of one function share a
        count.
      replay: for a training step: record it until two recordings agree, then launch its program without running the
        function, while nothing that the function reads in Python has changed
        ([guide](../../how_to/replay_a_step.md)). Tensors that it returns are detached.

    Returns:
      The compiled function, with the arguments and results of ``f``; without ``f``, a decorator that is also a context
      manager.

    Raises:
      RuntimeError (by a call): with ``full_graph``, a line reads a value; or there are more different graphs than
        ``max_different_graphs``.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> @torch_xla.compile(full_graph=True)
      ... def normalize(x):
      ...     return (x - x.mean()) / x.std()
      >>> y = normalize(torch.arange(5.0, device="xla"))
      >>> round(y.std().item(), 4)
      1.0
    """
    if f is None:
        if replay:
            options: dict[str, Any] = {"full_graph": full_graph, "name": name, "replay": True}
            decorator: Any = functools.partial(compile, max_different_graphs=max_different_graphs, **options)
            return decorator  # type: ignore[no-any-return]
        return _regions.named_region(name, full_graph, max_different_graphs)
    label = name if name is not None else str(getattr(f, "__name__", f))
    region = _regions.function_region(f, label, full_graph, max_different_graphs)
    return replayed_function.ReplayedFunction(f, label, region) if replay else region(f)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Run ``fn(index, *args)`` on every device of this host, in one process per device, and wait for all processes.

    In a process that torchrun (or spawn) has started, call ``fn(LOCAL_RANK, *args)`` instead.

    Args:
      fn: a function at the top level of a module.
      args: its further arguments, which are pickled.
      start_method: ``spawn``, ``fork`` or ``forkserver``; see [spawn][torch_xla.distributed.xla_multiprocessing.spawn].
      debug_single_process: run in this process, on one device.

    Raises:
      As [spawn][torch_xla.distributed.xla_multiprocessing.spawn].

    Examples:
      One process, on this device; without ``debug_single_process`` there is one process per device of the host:

      >>> import torch_xla
      >>> def train(index, learning_rate):
      ...     print(f"replica {index}, learning rate {learning_rate}")
      >>> torch_xla.launch(train, args=(0.1,), debug_single_process=True)
      replica 0, learning rate 0.1
    """
    if _replicas.process_count() > 1:
        fn(_replicas.local_ordinal(), *args)
        return
    from torch_xla.distributed import xla_multiprocessing

    xla_multiprocessing.spawn(fn, args, nprocs=1 if debug_single_process else None, start_method=start_method)


@dynamo_hooks.graph_break
def manual_seed(seed: int, device: torch.device | str | int | None = None) -> None:
    """Seed the random number generator of one xla device (default: the current one).

    Args:
      seed: an integer; its low 64 bits are used.
      device: an xla device, its name or its ordinal; default: the current device.

    Raises:
      IndexError, RuntimeError: the device does not exist (the exception is an instance of both).

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> torch_xla.manual_seed(42)
      >>> first = torch.rand(3, device="xla")
      >>> torch_xla.manual_seed(42)
      >>> torch.equal(torch.rand(3, device="xla"), first)
      True
    """
    recorder.bindings().set_seed(recorder.ordinal(device), seed & _seeding.MASK)


def set_custom_compile_options(options: Mapping[str, object]) -> None:
    """Accept an empty dict: options of XLA are set for the process, before it starts.

    Args:
      options: upstream's dict of XLA options and their values.

    Raises:
      NotImplementedError: there are options; the message has the variable to set.
    """
    if options:
        flags = " ".join(f"--{name}={str(value).lower()}" for name, value in options.items())
        raise NotImplementedError(
            "set_custom_compile_options: XLA's options are set for the process, because they are part of the keys of "
            f"its caches; start it with XLA_FLAGS='{flags}'"
        )
