"""Devices and the step barrier: what ``torch_xla`` itself offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from torch_xla._engine.torch_patches import manual_seed as _seeding

P = ParamSpec("P")
R = TypeVar("R")


@dynamo_hooks.graph_break
def device(index: int | None = None) -> torch.device:
    """The xla device of that ordinal, or the current one. IndexError, and RuntimeError, for one that does not exist."""
    return torch.device("xla", recorder.ordinal(index))


@dynamo_hooks.graph_break
def devices() -> list[torch.device]:
    """All xla devices of this process."""
    return [torch.device("xla", i) for i in range(device_count())]


@dynamo_hooks.graph_break
def device_count() -> int:
    """The number of xla devices of this process; starts the backend."""
    return _devices.count()


@dynamo_hooks.graph_break
def real_devices() -> list[str]:
    """The hardware behind each xla device, such as ``CPU:0`` or ``TPU:3``."""
    return [_devices.hardware_name(i) for i in range(device_count())]


def sync(wait: bool = False, reset_scope: bool = True) -> None:
    """The step barrier: compiles (or finds) the program of everything recorded so far and starts it.

    Args:
      wait: return only when the device has finished. ``XLA_SYNC_WAIT=1`` makes every sync wait.
      reset_scope: accepted for compatibility.
    """
    del reset_scope
    barrier.mark_step(wait)


@contextmanager
def step() -> Iterator[None]:
    """Wraps one step: a barrier before it and one after it, also when it raises."""
    with sync_reasons.sync_reason(sync_reasons.STEP):
        sync()
    try:
        yield
    finally:
        with sync_reasons.sync_reason(sync_reasons.STEP):
            sync()


@overload
def compile(f: None = None, full_graph: bool = False, name: str | None = None,
            max_different_graphs: int | None = None) -> ContextDecorator: ...  # fmt: skip
@overload
def compile(f: Callable[P, R], full_graph: bool = False, name: str | None = None,
            max_different_graphs: int | None = None) -> Callable[P, R]: ...  # fmt: skip
def compile(
    f: Callable[P, R] | None = None, full_graph: bool = False, name: str | None = None,
    max_different_graphs: int | None = None,
) -> Callable[P, R] | ContextDecorator:  # fmt: skip
    """Makes one graph of a function, also in eager mode: what is pending before it runs first, then all it records.

    A decorator (``@torch_xla.compile``, ``@torch_xla.compile(full_graph=True)``), a wrapper
    (``step = torch_xla.compile(step)``) or a context (``with torch_xla.compile(): ...``).

    Args:
      f: the function; None for the decorator with arguments, and the context.
      full_graph: nothing may run before the end: RuntimeError, at the line that needs a value.
      name: for messages; default: the function's. Contexts of one name count their graphs together.
      max_different_graphs: RuntimeError instead of one graph more than that; wrappers of one function count together.
    """
    if f is None:
        return _regions.named_region(name, full_graph, max_different_graphs)
    label = name if name is not None else str(getattr(f, "__name__", f))
    return _regions.function_region(f, label, full_graph, max_different_graphs)(f)


def launch(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    start_method: str = "spawn",
    debug_single_process: bool = False,
) -> None:
    """Runs ``fn(index, *args)`` on every device of this machine, a process each, and waits for all.

    In a process that torchrun (or spawn) has started it calls ``fn(LOCAL_RANK, *args)``: the processes are there. With
    ``debug_single_process`` one process does it, this one. For the errors see xla_multiprocessing.spawn.
    """
    if _replicas.process_count() > 1:
        fn(_replicas.local_ordinal(), *args)
        return
    from torch_xla.distributed import xla_multiprocessing

    xla_multiprocessing.spawn(fn, args, nprocs=1 if debug_single_process else None, start_method=start_method)


@dynamo_hooks.graph_break
def manual_seed(seed: int, device: torch.device | str | int | None = None) -> None:
    """Seeds the random numbers of one xla device (default: the current one)."""
    recorder.bindings().set_seed(recorder.ordinal(device), seed & _seeding.MASK)
