"""Translate errors of XLA and jax to torch errors with the failed action and the user's line.

These are errors that torch has no argument check for: out of memory, a compiler failure, a lost device. An error raised
by the launch leaves all tensors unchanged (execution/executor.py). An error of an asynchronous device (GPU, TPU) is
raised later, where a value is read or waited for: then the results of the program and its donated inputs are lost.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.graph.program_info import GraphOutline

_MAX_SHOWN = 8  # buffers in a message
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: "Out of memory allocating 17179869184 bytes", "trying to allocate 16.00GiB"
_AMOUNT = re.compile(r"alloc\w*\s+(?:of\s+|request for\s+)?(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B|bytes)?\b", re.IGNORECASE)


class XlaError(RuntimeError):
    """XLA failed to compile or run a graph, or to transfer a value. Tensors are unchanged; the step can be retried."""


def translate_xla_error(
    error: jax.errors.JaxRuntimeError, doing: str, device: int, graph: GraphOutline | None = None
) -> Exception:
    """Return an XlaError or torch.OutOfMemoryError with the failed action and the user's line.

    Args:
      error: the error that XLA raised.
      doing: the action, such as ``uploading float32[2, 3]``.
      device: the ordinal of the xla device.
      graph: the graph that was compiled or run, if any.
    """
    text = str(error)
    _translated.append(text)
    if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return torch.OutOfMemoryError(_out_of_memory(text, doing, device, graph))
    line = f"  while {doing} on {_device_label(device)}, at {user_frames.user_line()}"
    return XlaError("\n".join([_first_line(text), line, *_largest_results(graph)]))


#: What XLA puts before the text of an error: more when it is read (jax 0.10.0) than when the program fails.
_PREFIX = re.compile(r"^[A-Z_]+: (Buffer Definition Event: )?")
#: The texts of the latest XLA errors that were raised to the user.
_translated: deque[str] = deque(maxlen=64)


def is_translated(text: str) -> bool:
    """Return whether an error with this text was raised already, also for a program that used the failed result."""
    cause = _PREFIX.sub("", text)
    return any(cause in raised or _PREFIX.sub("", raised) in text for raised in _translated)


class translate_xla_errors:
    """Context that translates errors of XLA; ``doing`` returns the action, and is called after an error only."""

    def __init__(self, doing: Callable[[], str], device: int, graph: GraphOutline | None = None) -> None:
        self._doing, self._device, self._graph = doing, device, graph

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise translate_xla_error(error, self._doing(), self._device, self._graph) from error


def requested_bytes(text: str) -> int | None:
    """Return the bytes of the failed allocation in an XLA error; None if the error does not contain them."""
    found = _AMOUNT.search(text)
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


def _out_of_memory(text: str, doing: str, device: int, graph: GraphOutline | None) -> str:
    amount = requested_bytes(text)
    requested = "unknown (not reported by XLA)" if amount is None else metrics.format_bytes(amount)
    return "\n".join(
        [
            f"out of memory on {_device_label(device)} while {doing}, at {user_frames.user_line()}",
            f"  requested: {requested} ({_first_line(text)})",
            *_largest_results(graph),
            *_live_buffer_lines(device),
            "  To reduce memory: use a smaller batch; bfloat16; `del` tensors that live across steps (for a list of "
            "losses, append loss.detach()); torch_xla.sync() at the end of each step; torch.utils.checkpoint.",
        ]
    )


def _live_buffer_lines(device: int) -> list[str]:
    buffers: list[jax.Array] = [b for b in recorder.bindings().live_buffers(device) if not b.is_deleted()]
    if not buffers:
        return ["  live tensors: none on this device; the program itself needs the memory"]
    total = sum(b.nbytes for b in buffers)
    largest = sorted(buffers, key=lambda b: -b.nbytes)[:_MAX_SHOWN]
    lines = [f"  live tensors: {metrics.format_bytes(total)} in {len(buffers)} buffers; the largest:"]
    return lines + [f"    {metrics.format_bytes(b.nbytes):>10}  {b.dtype}{list(b.shape)}" for b in largest]


def _largest_results(graph: GraphOutline | None) -> list[str]:
    """The largest results of a graph, each with its op."""
    if graph is None:
        return []
    return [f"  {graph}; largest results:"] + [
        f"    {metrics.format_bytes(size):>10}  {op}: {str(dtype).removeprefix('torch.')}{list(shape)}"
        for size, op, shape, dtype in graph.largest
    ]


def _device_label(device: int) -> str:
    return f"xla:{device} ({devices.device(device).device_kind})"


def _first_line(text: str) -> str:
    """Return the first line of an error; for a Python callback of the program, with the exception it raised."""
    first, *rest = text.strip().split("\n")
    raised = [line for line in rest if line and not line[0].isspace()]
    return f"{first.split(': Traceback')[0]}: {raised[-1]}" if "Traceback (most recent" in first and raised else first


def recreate_error(error: Exception, *args: object) -> Exception:
    """Return an error of the same type with these arguments and no traceback, whose frames would hold tensors.

    Fall back to RuntimeError if the type does not accept the arguments.
    """
    try:
        return type(error)(*args)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {' '.join(map(str, args))}")
