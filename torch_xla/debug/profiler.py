"""Profiles of what devices and host do over time, by jax's profiler: for TensorBoard, XProf and Perfetto.

``torch.profiler`` shows the other half: what recording costs on the host.
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
    "trace: profiling another process ({address}) needs the package xprof, which is not installed: pip install xprof. "
    "Without it, call start_trace() and stop_trace() in that process."
)

_marked = threading.local()
_serving: int | None = None  # the port of this process's server
_server: object | None = None


def set_tracer_marked_step(value: bool) -> None:
    """Notes for this thread that a StepTrace ends the step, so that a data loader must not."""
    _marked.value = value


def get_tracer_marked_step() -> bool:
    """What set_tracer_marked_step was given last on this thread."""
    return bool(getattr(_marked, "value", False))


class Trace:
    """A named span of the timeline: ``with xp.Trace("build_graph"): ...``.

    Keyword arguments show up as the span's details. While origins are captured (XLA_IR_DEBUG), the operations recorded
    inside have the name in their scope. A Trace may be entered again after it was left.
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
    """A Trace of one step: ``with xp.StepTrace("train", step_num=i): ...``. Leaving it is the step barrier.

    The profiler's tools group what happens by step. The barrier is skipped when the block raises.
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
    """Decorator: every call of the function is a Trace of that name."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def traced(*args: Any, **kwargs: Any) -> Any:
            with Trace(scope):
                return function(*args, **kwargs)

        return traced  # type: ignore[return-value]

    return decorate


def start_trace(log_dir: str | os.PathLike[str]) -> None:
    """Starts a profile of this process. RuntimeError if one is running. Starts the backend."""
    jax.profiler.start_trace(log_dir)


def stop_trace() -> None:
    """Ends the profile and writes it to ``log_dir``/plugins/profile. RuntimeError if none is running."""
    jax.profiler.stop_trace()


def start_server(port: int, only_on_master: bool = True) -> object | None:
    """Lets TensorBoard, XProf and trace() profile this process at ``port``; keep what it returns for as long.

    With ``only_on_master`` (the default) processes other than the first start nothing and return None. Where this
    process has a server at the port it is that one; ValueError if it has one at another. Starts the backend.
    """
    global _serving, _server
    devices.devices()  # jax asks for its own otherwise, and then not for as many as CPU_NUM_DEVICES says
    if only_on_master and jax.process_index() != 0:
        return None
    if _server is not None:
        if port != _serving:
            raise ValueError(f"start_server: this process has a server at port {_serving}, and there is only one")
        return _server
    _server = jax.profiler.start_server(port)
    _serving = port
    return _server


def trace(
    service_addr: str, logdir: str, duration_ms: int = 1000, num_tracing_attempts: int = 3,
    host_tracer_level: int = 2, device_tracer_level: int = 1, delay_ms: int = 0, timeout_s: int = 120,
    interval_s: int = 5,
) -> None:  # fmt: skip
    """Profiles a process that has called start_server, for ``duration_ms``, and writes the profile to ``logdir``.

    Args:
      service_addr: ``host:port`` of the server. This process's own server needs nothing else; others need xprof.
      logdir: folder; ``plugins/profile`` is made in it.
      num_tracing_attempts: how often a profile without any event is tried again.
      host_tracer_level, device_tracer_level: 0 (nothing) to 3 (verbose), and 0 or 1; jax 0.12 has no second one.
      delay_ms: wait so long before starting.
      timeout_s, interval_s: keep trying for so long, every so often, while the server cannot be reached.

    Raises RuntimeError where the server is not reached in time, or xprof is missing.
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
    if hasattr(options, "device_tracer_level"):  # since jax 0.12 there is no such level
        options.device_tracer_level = levels["device_tracer_level"]
    jax.profiler.start_trace(logdir, profiler_options=options)
    try:
        time.sleep(duration_ms / 1000)
    finally:
        jax.profiler.stop_trace()


def trace_detached(*args: Any, **kwargs: Any) -> threading.Thread:
    """trace() on a thread of its own, which it returns; the caller's steps are what is profiled."""
    thread = threading.Thread(target=trace, args=args, kwargs=kwargs, name="torch_xla_trace", daemon=True)
    thread.start()
    return thread
