"""Profile devices and host with jax's profiler, for TensorBoard, XProf and Perfetto.

Use ``torch.profiler`` for the cost of recording operations on the host.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any, TypeVar

import jax

from torch_xla._engine.compat import xprof
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import sync_reasons
from torch_xla._engine.execution import barrier
from torch_xla._engine.recorder import module_scopes, source_info

F = TypeVar("F", bound=Callable[..., Any])

_NO_CLIENT = (
    "trace: profiling another process ({address}) requires the package xprof, which is not installed: pip install "
    "xprof, or call start_trace() and stop_trace() in that process."
)

_marked = threading.local()
_serving: int | None = None  # the port of this process's server
_server: object | None = None


def set_tracer_marked_step(value: bool) -> None:
    """Set for this thread whether a StepTrace ends the step, so that a data loader does not.

    Args:
      value: whether a StepTrace ends the step.
    """
    _marked.value = value


def get_tracer_marked_step() -> bool:
    """Return the last value of set_tracer_marked_step on this thread."""
    return bool(getattr(_marked, "value", False))


class Trace:
    """A named span of the timeline: ``with xp.Trace("build_graph"): ...``.

    Keyword arguments become metadata of the span. While source locations are captured (XLA_IR_DEBUG), operations
    recorded inside have the name in their scope. A Trace can be reentered after it was left.

    Args:
      name: the name of the span.
      kwargs: values to show with the span.

    Examples:
      >>> import torch
      >>> import torch_xla.debug.profiler as xp
      >>> with xp.Trace("forward", batch=32):
      ...     y = torch.ones(32, device="xla") * 2
    """

    def __init__(self, name: str, **kwargs: Any) -> None:
        self.name = name
        self._details = kwargs
        self._entered = ExitStack()

    def _annotation(self) -> jax.profiler.TraceAnnotation:
        return jax.profiler.TraceAnnotation(self.name, **self._details)

    def __enter__(self) -> Trace:
        self._entered = ExitStack()
        self._entered.enter_context(self._annotation())
        if source_info.is_capturing():
            self._entered.enter_context(module_scopes.push_scope(self.name))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._entered.close()


class StepTrace(Trace):
    """A Trace of one step: ``with xp.StepTrace("train", step_num=i): ...``. Leaving it is a step barrier.

    The profiler's tools group events by step. The barrier is skipped if the block raises.

    Examples:
      >>> import torch
      >>> import torch_xla.debug.profiler as xp
      >>> for i in range(2):
      ...     with xp.StepTrace("train", step_num=i):  # torch_xla.sync() at the end
      ...         y = torch.ones(32, device="xla") * 2
    """

    def _annotation(self) -> jax.profiler.TraceAnnotation:
        return jax.profiler.StepTraceAnnotation(self.name, **self._details)

    def __enter__(self) -> StepTrace:
        set_tracer_marked_step(True)
        super().__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None:
                with sync_reasons.sync_reason(sync_reasons.STEP_TRACE):
                    barrier.mark_step()
        finally:
            super().__exit__(kind, error, at)


def trace_me(scope: str) -> Callable[[F], F]:
    """Decorate a function so that every call is a Trace of that name.

    Args:
      scope: name of the span.
    """

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    return decorate


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Start a profile of this process, and the backend.

    Args:
      log_dir: the folder in which stop_trace writes ``plugins/profile``.

    Raises:
      RuntimeError: a profile is running.

    Examples:
      >>> import torch
      >>> import torch_xla
      >>> import torch_xla.debug.profiler as xp
      >>> xp.start_trace("profile")
      >>> x = torch.ones(8, device="xla") * 2
      >>> torch_xla.sync(wait=True)
      >>> xp.stop_trace()  # then: tensorboard --logdir profile
    """
    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """End the profile and write it to the folder of start_trace.

    Raises:
      RuntimeError: no profile is running.

    Examples:
      >>> import os
      >>> import torch_xla.debug.profiler as xp
      >>> xp.start_trace("profile")
      >>> xp.stop_trace()
      >>> os.listdir("profile")
      ['plugins']
    """
    jax.profiler.stop_trace()


def start_server(port: int, only_on_master: bool = True) -> object | None:
    """Start a server at ``port`` for TensorBoard, XProf and trace(), and start the backend.

    A second call returns the server of the first one. With ``only_on_master`` (the default), processes other than the
    first start no server and return None.

    Args:
      port: TCP port of the server.
      only_on_master: start it in the first process of the job only.

    Returns:
      The server, which runs as long as the caller holds a reference.

    Raises:
      ValueError: this process has a server at another port.
    """
    global _serving, _server
    devices.devices()  # start the backend with CPU_NUM_DEVICES devices, before jax starts it with its default
    if only_on_master and jax.process_index() != 0:
        return None
    if _server is not None:
        if port != _serving:
            raise ValueError(f"start_server: this process has a server at port {_serving}; use that port")
        return _server
    _server = jax.profiler.start_server(port)
    _serving = port
    return _server


def trace(
    service_addr: str, logdir: str, duration_ms: int = 1000, num_tracing_attempts: int = 3,
    host_tracer_level: int = 2, device_tracer_level: int = 1, delay_ms: int = 0, timeout_s: int = 120,
    interval_s: int = 5,
) -> None:  # fmt: skip
    """Profile a process that has called start_server, and write the profile to ``logdir``.

    Args:
      service_addr: ``host:port`` of the server. Servers of other processes require the package xprof.
      logdir: the folder in which ``plugins/profile`` is created.
      duration_ms: the duration of the profile in ms.
      num_tracing_attempts: the number of attempts if a profile contains no events.
      host_tracer_level: 0 (off) to 3 (verbose).
      device_tracer_level: 0 or 1; jax 0.12 ignores it.
      delay_ms: the delay before the profile in ms.
      timeout_s: how long to retry while the server cannot be reached, in s.
      interval_s: the interval between retries, in s.

    Raises:
      RuntimeError: the server was not reached in time, or xprof is missing.
    """
    address = service_addr.removeprefix("grpc://")
    levels = {"host_tracer_level": host_tracer_level, "device_tracer_level": device_tracer_level}
    time.sleep(delay_ms / 1000)
    if address in (f"{host}:{_serving}" for host in ("localhost", "127.0.0.1", "[::1]")):
        _trace_here(logdir, duration_ms, levels)
        return
    until = time.monotonic() + timeout_s
    while True:
        try:
            xprof.capture_remote_trace(address, logdir, duration_ms, num_tracing_attempts, levels)
            return
        except ImportError:
            raise RuntimeError(_NO_CLIENT.format(address=address)) from None
        except Exception as error:
            if time.monotonic() + interval_s > until:
                raise RuntimeError(f"trace: no profile from {address} in {timeout_s} s: {error}") from error
            time.sleep(interval_s)


def _trace_here(logdir: str, duration_ms: int, levels: dict[str, int]) -> None:
    options = jax.profiler.ProfileOptions()
    options.host_tracer_level = levels["host_tracer_level"]
    if hasattr(options, "device_tracer_level"):  # removed in jax 0.12
        options.device_tracer_level = levels["device_tracer_level"]
    jax.profiler.start_trace(logdir, profiler_options=options)
    try:
        time.sleep(duration_ms / 1000)
    finally:
        jax.profiler.stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """Run trace() on a separate thread, which is returned, to profile the caller's steps.

    Args:
      args, kwargs: those of trace().
    """
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="torch_xla_trace", daemon=True)
    thread.start()
    return thread
