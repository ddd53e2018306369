"""What XLA and jax raise while they compile, run or move values, as an error that says what was being done, and where.

The program is not at fault, or not in a way that torch has words for: memory that runs out, a program that the compiler
refuses, a device that is gone. Nothing has changed when such an error is raised by the call that starts a program; see
execution/executor.py. One that arrives later, from a device that computes behind the call (GPU, TPU), is raised where a
value is read or waited for: what the program was to compute is lost then, and so is what it took the memory of.
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

_SHOWN = 8  # buffers in a message
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: "Out of memory allocating 17179869184 bytes", "trying to allocate 16.00GiB"
_AMOUNT = re.compile(r"alloc\w*\s+(?:of\s+|request for\s+)?(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B|bytes)?\b", re.IGNORECASE)


class XlaError(RuntimeError):
    """XLA could not compile or run a graph, or move a value. The tensors are as they were; it can be tried again."""


def translate_xla_error(
    error: jax.errors.JaxRuntimeError, doing: str, device: int, graph: GraphOutline | None = None
) -> Exception:
    """An XlaError, or torch.OutOfMemoryError, that says what was being done when XLA raised ``error``, and where.

    Args:
      doing: what follows "while", such as ``uploading float32[2, 3]``.
      device: the ordinal of the xla device.
      graph: if it was one that was compiled or run.
    """
    text = str(error)
    _explained.append(text)
    if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
        return torch.OutOfMemoryError(_out_of_memory(text, doing, device, graph))
    line = f"  while {doing} on {_device_label(device)}, at {user_frames.user_line()}"
    return XlaError("\n".join([_first_line(text), line, *_graph(graph)]))


#: What XLA said in the latest errors that were raised to the user.
_explained: deque[str] = deque(maxlen=64)


def is_translated(text: str) -> bool:
    """Whether an error with XLA's ``text`` was raised, also for a program that used the failed result."""
    return any(text in raised or raised in text for raised in _explained)


class translate_xla_errors:
    """In its block, an error of XLA becomes what ``explain`` makes of it; ``doing`` is called after an error only."""

    def __init__(self, doing: Callable[[], str], device: int, graph: GraphOutline | None = None) -> None:
        self._doing, self._device, self._graph = doing, device, graph

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if isinstance(error, jax.errors.JaxRuntimeError):
            raise translate_xla_error(error, self._doing(), self._device, self._graph) from error


def requested_bytes(text: str) -> int | None:
    """The bytes that an error of XLA says it could not have; None where it does not say."""
    found = _AMOUNT.search(text)
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


def _out_of_memory(text: str, doing: str, device: int, graph: GraphOutline | None) -> str:
    amount = requested_bytes(text)
    asked = "an amount that XLA does not say" if amount is None else metrics.format_bytes(amount)
    return "\n".join(
        [
            f"out of memory on {_device_label(device)} while {doing}, at {user_frames.user_line()}",
            f"  asked for: {asked} ({_first_line(text)})",
            *_graph(graph),
            *_live_buffer_lines(device),
            "  What helps: a smaller batch; bfloat16; `del` of tensors that are kept from step to step (losses in a "
            "list: append loss.detach()); torch_xla.sync() at the end of each step; torch.utils.checkpoint.",
        ]
    )


def _live_buffer_lines(device: int) -> list[str]:
    buffers: list[jax.Array] = [b for b in recorder.bindings().live_buffers(device) if not b.is_deleted()]
    total = sum(b.nbytes for b in buffers)
    largest = sorted(buffers, key=lambda b: -b.nbytes)[:_SHOWN]
    lines = [f"  held by live tensors: {metrics.format_bytes(total)} in {len(buffers)} buffers; the largest:"]
    return lines + [f"    {metrics.format_bytes(b.nbytes):>10}  {b.dtype}{list(b.shape)}" for b in largest]


def _graph(graph: GraphOutline | None) -> list[str]:
    """The largest results of a graph, each with its op."""
    if graph is None:
        return []
    return [f"  {graph}; its largest results:"] + [
        f"    {metrics.format_bytes(size):>10}  {op}: {str(dtype).removeprefix('torch.')}{list(shape)}"
        for size, op, shape, dtype in graph.largest
    ]


def _device_label(device: int) -> str:
    return f"xla:{device} ({devices.device(device).device_kind})"


def _first_line(text: str) -> str:
    """What has happened; of a Python function that the program calls, what that has raised."""
    first, *rest = text.strip().split("\n")
    raised = [line for line in rest if line and not line[0].isspace()]
    return f"{first.split(': Traceback')[0]}: {raised[-1]}" if "Traceback (most recent" in first and raised else first


def recreate_error(error: Exception, *args: object) -> Exception:
    """Return an error of the same type with these arguments and no traceback, whose frames would hold tensors.

    Falls back to RuntimeError where the type does not accept the arguments.
    """
    try:
        return type(error)(*args)
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {' '.join(map(str, args))}")
