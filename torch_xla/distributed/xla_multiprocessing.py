"""``xmp``: a process per device.

import torch_xla.distributed.xla_multiprocessing as xmp

def train(index, flags): ...

if __name__ == "__main__":
    xmp.spawn(train, args=(flags,))
"""

from __future__ import annotations

import gc
import socket
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing as mp

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices, hardware_detection
from torch_xla._engine.job import replicas
from torch_xla.distributed._spawn_context import SpawnContext

__all__ = ["MpModelWrapper", "MpSerialExecutor", "SpawnContext", "create_optimized_replica_groups", "spawn"]


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnContext | None:
    """Runs ``fn(index, *args)`` in a process per device, each of which sees one device, ``xla:0``.

    Args:
      fn: a function at the top level of a module; with ``start_method="fork"`` any function.
        On a machine of a job of xla_dist, ``index`` counts the processes of all machines.
      args: further arguments; only these are pickled. What the parent's modules hold is not sent.
      nprocs: how many. Default: the machine's devices (CPU: ``CPU_NUM_DEVICES``). 1 runs ``fn(0, *args)`` right here.
        On CPU any number; elsewhere at most the machine's devices.
      join: wait for all to end. Otherwise a SpawnContext with ``processes`` and ``join()`` is returned.
      daemon: whether the processes are daemonic (a daemonic one may not start processes itself).
      start_method: ``spawn``, ``fork`` or ``forkserver``. For a function of a notebook, or of another session that is
        no file, which new processes could not import, ``spawn`` is ``fork``.

    SIGTERM to this process while it waits in its main thread, as docker stop and Kubernetes send it, goes to the
    processes, which have ``TORCH_XLA_GRACE_PERIOD`` seconds to save and end; then they are killed, and this process
    ends by SIGTERM. A handler that the program has installed is called after the processes have got the signal, and
    decides what this one does; nothing is sent where the program ignores SIGTERM. The processes are killed when this
    one dies otherwise.

    Raises ValueError for a number of processes that cannot be; RuntimeError where a device was used before in a way
    that the processes cannot live with, which is any way for a function of a notebook;
    torch.multiprocessing.ProcessRaisedException with the traceback of the process that failed first, or
    ProcessExitedException; the others have been ended then.
    """
    if devices.is_emulated():
        return _run_first_replica(fn, args, nprocs, join)
    count = hardware_detection.max_local_processes() if nprocs is None else nprocs
    if count > 1 and start_method == "spawn" and _is_interactive_function(fn):
        start_method = _interactive_start_method(fn)
    _check(count, start_method)
    first = replicas.process_index() * count if settings.TORCH_XLA_DIST else 0
    if count == 1:
        fn(first, *args)
        return None
    environments = _environments_on_host(count) if settings.TORCH_XLA_DIST else _environments(count)
    context = SpawnContext(_call_with_rank_offset, (fn, first, args), environments, daemon, start_method)
    if not join:
        return context
    context.join()
    return None


def _run_first_replica(
    fn: Callable[..., Any], args: tuple[Any, ...], nprocs: int | None, join: bool
) -> SpawnContext | None:
    """For torch_xla.aot: the first of the processes, right here, in place of all that the target has chips for."""
    chips = len(devices.devices())
    count = chips if nprocs is None else nprocs
    if not 1 <= count <= chips:
        raise ValueError(f"spawn: nprocs={nprocs}, but the target has {chips} chips")
    if not join:
        raise NotImplementedError("spawn(join=False): torch_xla.aot runs the first process only, and in this one")
    with replicas.simulate_replicas(count):
        fn(0, *args)
    return None


def _call_with_rank_offset(index: int, fn: Callable[..., Any], first: int, args: tuple[Any, ...]) -> None:
    fn(first + index, *args)


def _is_interactive_function(fn: Callable[..., Any]) -> bool:
    """Whether new processes could not import the function: it was typed into a notebook, a prompt or ``python -c``."""
    main = sys.modules["__main__"]
    is_file = hasattr(main, "__file__") or getattr(main, "__spec__", None) is not None
    return not is_file and getattr(getattr(fn, "func", fn), "__module__", None) == "__main__"


def _interactive_start_method(fn: Callable[..., Any]) -> str:
    """The start method with which processes have such a function. RuntimeError where there is none left."""
    if devices.backend_started():
        name = getattr(fn, "__name__", repr(fn))
        raise RuntimeError(
            f"spawn: {name} was defined in a notebook or at a prompt, where new processes cannot import it, and an xla "
            "device has been used in this process, which XLA does not survive a fork of. Restart the kernel and call "
            f"spawn before any device is used; or write {name} into a file (%%writefile train.py) and import it"
        )
    return "fork"


def _check(count: int, start_method: str) -> None:
    kind = hardware_detection.detect_device_type()
    if count < 1:
        raise ValueError(f"spawn: nprocs={count} must be at least 1")
    if kind != "CPU" and count > hardware_detection.max_local_processes():
        raise ValueError(
            f"spawn: nprocs={count}, but this machine has {hardware_detection.max_local_processes()} {kind} devices"
        )
    if count == 1:
        return
    if replicas.process_count() > 1 and not settings.TORCH_XLA_DIST:
        raise RuntimeError(
            "spawn: this process is one of a job of several already (started by torchrun or spawn); call the function "
            "itself, or use torch_xla.launch, which does"
        )
    if devices.backend_started() and start_method != "spawn":
        raise RuntimeError(
            f'spawn(start_method="{start_method}"): an xla device has been used in this process, and XLA does not '
            'survive a fork: use no device before spawn, or start_method="spawn"'
        )
    if devices.backend_started() and kind != "CPU":
        raise RuntimeError(
            f"spawn: this process has used an xla device and holds the machine's {kind} devices, which the new "
            "processes need; use no device before spawn"
        )


def _environments(count: int) -> list[dict[str, str]]:
    """The environment of each process: the names that torchrun uses, and the device's own."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        # For process groups of other backends that the user makes beside ours.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [
        shared | {"RANK": str(index), "LOCAL_RANK": str(index)} | hardware_detection.process_env(index, count)
        for index in range(count)
    ]


def _environments_on_host(count: int) -> list[dict[str, str]]:
    """The environment of each process where xla_dist has started this one: it stands for its machine's processes.

    They meet where xla_dist has said. To them TORCH_XLA_DIST is unset: each is a process of the job, and no machine.
    """
    shared = {
        "WORLD_SIZE": str(replicas.process_count() * count),
        "LOCAL_WORLD_SIZE": str(settings.LOCAL_WORLD_SIZE * count),
        "TORCH_XLA_DIST": "",
        "TORCH_XLA_RENDEZVOUS": "",
    }
    return [
        shared
        | {"RANK": str(settings.RANK * count + index), "LOCAL_RANK": str(settings.LOCAL_RANK * count + index)}
        | hardware_detection.process_env(index, count)
        for index in range(count)
    ]


class MpSerialExecutor:
    """Runs a function in one process after the other. Made before the processes, and inherited or passed to them."""

    def __init__(self) -> None:
        self._lock = mp.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """What ``fn()`` returns, called while no other process is inside."""
        with self._lock:
            return fn()


class MpModelWrapper:
    """A model made before forking, whose memory the processes share until each moves it to its device, in turn."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._lock = mp.Lock()

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """The model on the device; one process at a time, so that host memory holds one copy being moved."""
        with self._lock:
            self._model.to(device)
            gc.collect()
        return self._model


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Groups of replicas in the order that is best for the hardware's links; None: the natural one is."""
    return None
