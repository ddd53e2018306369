"""``xmp``: spawn one replica process per device.

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
from torch_xla._engine.compat import process_exit
from torch_xla._engine.device import devices, hardware_detection
from torch_xla._engine.job import replicas
from torch_xla.distributed._spawn_context import NO_MAIN_GUARD, SpawnContext

__all__ = ["MpModelWrapper", "MpSerialExecutor", "SpawnContext", "create_optimized_replica_groups", "spawn"]


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int | None = None,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> SpawnContext | None:
    """Run ``fn(index, *args)`` in one process per device; each process sees one device, ``xla:0``.

    If this process receives SIGTERM while it waits in its main thread, as from docker stop or Kubernetes, it forwards
    the signal to the processes, which have ``TORCH_XLA_GRACE_PERIOD`` seconds to save and exit. Then they are killed,
    and this process exits by SIGTERM. A handler that the program has installed is called after the signal is forwarded,
    and decides how this process continues. If the program ignores SIGTERM, nothing is forwarded. If this process dies
    otherwise, the processes are killed.

    Args:
      fn: a function at the top level of a module; with ``start_method="fork"`` any function. On a host of an xla_dist
        job, ``index`` counts the processes of all hosts.
      args: further arguments; only these are pickled. State of the parent's modules is not sent.
      nprocs: number of processes. Default: the host's devices (CPU: ``CPU_NUM_DEVICES``). 1 runs ``fn(0, *args)`` in
        this process. Any number on CPU; on other device types at most the host's devices.
      join: wait for all processes. Otherwise return a SpawnContext with ``processes`` and ``join()``.
      daemon: whether the processes are daemonic (a daemonic process cannot start processes itself).
      start_method: ``spawn``, ``fork`` or ``forkserver``. For a function that new processes cannot import, because it
        was defined in a notebook or another interactive session, ``spawn`` means ``fork``.

    Returns:
      A SpawnContext with ``join=False``, otherwise None.

    Raises:
      ValueError: invalid number of processes.
      TypeError: new processes cannot import the function.
      RuntimeError: this process used a device in a way that the processes cannot inherit; for a function of a notebook,
        in any way.
      torch.multiprocessing.ProcessRaisedException: a process raised; has the traceback of the first one that failed.
      torch.multiprocessing.ProcessExitedException: a process exited. The others have been terminated.

    Examples:
      One process; without ``nprocs`` there is one process per device of the host:

      >>> import torch_xla.distributed.xla_multiprocessing as xmp
      >>> def train(index, learning_rate):
      ...     print(f"replica {index}, learning rate {learning_rate}")
      >>> xmp.spawn(train, args=(0.1,), nprocs=1)
      replica 0, learning rate 0.1
    """
    if devices.is_emulated():
        return _run_first_replica(fn, args, nprocs, join)
    count = hardware_detection.max_local_processes() if nprocs is None else nprocs
    if count > 1 and start_method == "spawn" and _is_interactive_function(fn):
        start_method = _interactive_start_method(fn)
    _check(count, start_method)
    if count > 1:
        _check_importable(fn, start_method)
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
    """Run only the first process of the target, in this process, for torch_xla.aot."""
    chips = len(devices.devices())
    count = chips if nprocs is None else nprocs
    if not 1 <= count <= chips:
        raise ValueError(f"spawn: nprocs={nprocs}, but the target has {chips} chips")
    if not join:
        raise NotImplementedError("spawn(join=False): torch_xla.aot runs only the first process, in this process")
    with replicas.simulate_replicas(count):
        fn(0, *args)
    return None


def _call_with_rank_offset(index: int, fn: Callable[..., Any], first: int, args: tuple[Any, ...]) -> None:
    fn(first + index, *args)


def _is_interactive_function(fn: Callable[..., Any]) -> bool:
    """Return whether new processes cannot import the function: it is of a notebook, a prompt or ``python -c``."""
    main = sys.modules["__main__"]
    is_file = hasattr(main, "__file__") or getattr(main, "__spec__", None) is not None
    return not is_file and getattr(getattr(fn, "func", fn), "__module__", None) == "__main__"


def _interactive_start_method(fn: Callable[..., Any]) -> str:
    """Return the start method for such a function. Raises RuntimeError if none is possible."""
    if devices.backend_started():
        name = getattr(fn, "__name__", repr(fn))
        raise RuntimeError(
            f"spawn: {name} was defined in a notebook or at a prompt, where new processes cannot import it; this "
            "process has used an xla device, and XLA does not survive a fork. Restart the kernel and call spawn before "
            f"using a device; or write {name} to a file (%%writefile train.py) and import it"
        )
    return "fork"


def _check_importable(fn: Callable[..., Any], start_method: str) -> None:
    """Raise TypeError for a function that new processes cannot import; end a process that imports its main module."""
    if process_exit.is_importing_main():
        # The parent, which waits for this process, explains why (see SpawnContext).
        sys.exit(NO_MAIN_GUARD)
    name = str(getattr(getattr(fn, "func", fn), "__qualname__", ""))
    if start_method != "fork" and ("<lambda>" in name or "<locals>" in name):
        kind = "a lambda" if "<lambda>" in name else "a function inside another function"
        raise TypeError(
            f"spawn: {name} is {kind}, which new processes cannot import; move it to the top level of the module "
            f"(def train(index): ...), and pass its values with args=(...); or use start_method='fork'\n"
            "  See: torch-xla explain spawn"
        )


def _check(count: int, start_method: str) -> None:
    kind = hardware_detection.detect_device_type()
    if count < 1:
        raise ValueError(f"spawn: nprocs={count} must be at least 1")
    if kind != "CPU" and count > hardware_detection.max_local_processes():
        raise ValueError(
            f"spawn: nprocs={count}, but this host has {hardware_detection.max_local_processes()} {kind} devices"
        )
    if count == 1:
        return
    if replicas.process_count() > 1 and not settings.TORCH_XLA_DIST:
        raise RuntimeError(
            "spawn: this process already belongs to a job of several (started by torchrun or spawn); call the function "
            "directly, or use torch_xla.launch, which does"
        )
    if devices.backend_started() and start_method != "spawn":
        raise RuntimeError(
            f'spawn(start_method="{start_method}"): this process has used an xla device, and XLA does not '
            'survive a fork: use no device before spawn, or start_method="spawn"'
        )
    if devices.backend_started() and kind != "CPU":
        raise RuntimeError(
            f"spawn: this process has used an xla device and holds the host's {kind} devices, which the new processes "
            "need; use no device before spawn"
        )


def _environments(count: int) -> list[dict[str, str]]:
    """Return the environment of each process: torchrun's variables, and those of its device."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        # For process groups of other backends that the user creates.
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return [
        shared | {"RANK": str(index), "LOCAL_RANK": str(index)} | hardware_detection.process_env(index, count)
        for index in range(count)
    ]


def _environments_on_host(count: int) -> list[dict[str, str]]:
    """Return the environment of each process on a host of an xla_dist job.

    The processes use xla_dist's rendezvous. TORCH_XLA_DIST is unset for them: each is a process of the job, not a host.
    """
    shared = {
        "WORLD_SIZE": str(replicas.process_count() * count),
        "LOCAL_WORLD_SIZE": str(settings.LOCAL_WORLD_SIZE * count),
        "TORCH_XLA_DIST": "",
        "TORCH_XLA_RENDEZVOUS_FILE": "",
    }
    return [
        shared
        | {"RANK": str(settings.RANK * count + index), "LOCAL_RANK": str(settings.LOCAL_RANK * count + index)}
        | hardware_detection.process_env(index, count)
        for index in range(count)
    ]


class MpSerialExecutor:
    """Runs a function in one process after another. Create it before the processes, which inherit it or receive it."""

    def __init__(self) -> None:
        self._lock = mp.Lock()

    def run(self, fn: Callable[[], Any]) -> Any:
        """Return ``fn()``, called while no other process runs its function.

        Args:
          fn: a function without arguments.
        """
        with self._lock:
            return fn()


class MpModelWrapper:
    """A model created before forking; the processes share its memory until each moves it to its device, in turn.

    Args:
      model: a module on the CPU.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._lock = mp.Lock()

    def to(self, device: torch.device | str) -> torch.nn.Module:
        """Move the model to the device; one process at a time, so that host memory holds one additional copy.

        Args:
          device: the xla device of this process.
        """
        with self._lock:
            self._model.to(device)
            gc.collect()
        return self._model


def create_optimized_replica_groups() -> list[list[int]] | None:
    """Return replica groups in the best order for the hardware's links; None is the natural order."""
    return None
