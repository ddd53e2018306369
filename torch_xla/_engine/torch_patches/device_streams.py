"""Stream and Event of ``torch.xla``, with the semantics of torch.cuda's on ordered asynchronous execution.

A device runs its programs in the order in which they are launched, so each device has one stream. An event is a
position in that order. Recording an event launches the pending operations of its device, as ``synchronize`` does, and
does not wait: events around each operation make a program of each operation.
"""

from __future__ import annotations

import threading
from types import TracebackType

import torch

from torch_xla._engine import recorder
from torch_xla._engine.diagnostics import completion
from torch_xla._engine.execution import executor


def synchronize_device(ordinal: int) -> None:
    """Run the pending operations of a device and wait for them, and for the events recorded before."""
    executor.sync_device(ordinal)
    executor.wait_device(ordinal)
    completion.mark(ordinal).wait()


class Event:
    """A position in the programs of a device.

    not recorded -> recorded (record) -> ended (the device has run every program launched before)

    Args:
      enable_timing: whether ``elapsed_time`` is allowed.
      blocking: accepted for compatibility; ``synchronize`` never spins.
      interprocess: must be False.
    """

    def __init__(self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False) -> None:
        if interprocess:
            raise NotImplementedError("torch.xla.Event: events of other processes are not supported on xla")
        self.enable_timing = enable_timing
        self.device: torch.device | None = None
        self._marker: completion.Marker | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Launch the pending operations of the stream's device (default: the current one) and take the position."""
        ordinal = recorder.ordinal_or_current(None if stream is None else stream.device)
        executor.sync_device(ordinal)
        self.device, self._marker = torch.device("xla", ordinal), completion.mark(ordinal)

    def query(self) -> bool:
        """Whether the device has reached the event; True for an event that is not recorded."""
        return self._marker is None or self._marker.is_ended()

    def synchronize(self) -> None:
        """Wait until the device has reached the event."""
        if self._marker is not None:
            self._marker.wait()

    def wait(self, stream: Stream | None = None) -> None:
        """Make later operations of a stream (default: the current one) run after the event."""
        (current_stream() if stream is None else stream).wait_event(self)

    def elapsed_time(self, end_event: Event) -> float:
        """Return the milliseconds between two events that the device has reached.

        Raises:
          ValueError: an event was created without ``enable_timing``, or is not recorded.
          RuntimeError: the device has not reached an event.
        """
        times = []
        for event in (self, end_event):
            if not event.enable_timing or event._marker is None:
                raise ValueError("elapsed_time: both events must be recorded and created with enable_timing=True")
            if not event._marker.is_ended():
                raise RuntimeError("elapsed_time: the device has not reached both events; call synchronize() before")
            times.append(event._marker.time)
        return (times[1] - times[0]) / 1e6

    def __repr__(self) -> str:
        return f"<torch.xla.Event device={self.device} ended={self.query()}>"


class Stream:
    """The stream of a device; all streams of a device are equal.

    Args:
      device: default: the current one.
      priority: accepted for compatibility.
    """

    def __init__(self, device: torch.device | str | int | None = None, priority: int = 0) -> None:
        self.device = torch.device("xla", recorder.ordinal_or_current(device))
        self.priority = priority

    @property
    def device_index(self) -> int:
        """The ordinal of the device."""
        return int(self.device.index)

    @property
    def stream_id(self) -> int:
        """0: a device has one stream."""
        return 0

    def query(self) -> bool:
        """Whether the device has run everything; launches pending operations."""
        executor.sync_device(self.device_index)
        return all(buffer.is_ready() for buffer in recorder.bindings().live_buffers(self.device_index))

    def synchronize(self) -> None:
        """Run the pending operations of the device and wait for them."""
        synchronize_device(self.device_index)

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event, by default a new one, and return it."""
        event = event or Event()
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        """Make later operations of this stream run after the event. For an event of another device, the host waits."""
        if event.device is not None and event.device != self.device:
            event.synchronize()

    def wait_stream(self, stream: Stream) -> None:
        """Make later operations of this stream run after those of another stream."""
        if stream.device != self.device:
            self.wait_event(stream.record_event())

    def is_capturing(self) -> bool:
        """False: there are no graphs of streams."""
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and other.device == self.device

    def __hash__(self) -> int:
        return hash(self.device)

    def __enter__(self) -> Stream:
        _entered_devices().append(int(recorder.bindings().current_device()))
        recorder.bindings().set_current_device(self.device_index)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        recorder.bindings().set_current_device(_entered_devices().pop())

    def __repr__(self) -> str:
        return f"<torch.xla.Stream device={self.device}>"


_thread = threading.local()


def _entered_devices() -> list[int]:
    """Return the current devices before the streams that this thread has entered."""
    if not hasattr(_thread, "before"):
        _thread.before = []
    found: list[int] = _thread.before
    return found


def current_stream(device: torch.device | str | int | None = None) -> Stream:
    """Return the stream of a device (default: the current one)."""
    return Stream(device)


def default_stream(device: torch.device | str | int | None = None) -> Stream:
    """Return the stream of a device (default: the current one)."""
    return Stream(device)


class StreamContext:
    """Context manager that makes the stream's device the current one; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.stream is not None:
            self.stream.__exit__(kind, error, at)


def stream(stream: Stream | None) -> StreamContext:
    """Return a context manager that makes the stream's device the current one; None changes nothing."""
    return StreamContext(stream)


def set_stream(stream: Stream) -> None:
    """Make the stream's device the current one."""
    recorder.bindings().set_current_device(stream.device_index)


def is_current_stream_capturing() -> bool:
    """False: there are no graphs of streams."""
    return False
