"""What XLA and jax raise while they compile, run or move values, as an error that says what was being done, and where.

The program is not at fault, or not in a way that torch has words for: memory that runs out, a program that the compiler
refuses, a device that is gone. Nothing has changed when such an error arrives; see executor.py.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence

import jax
import torch

from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes, frames
from torch_xla._engine.device import devices
from torch_xla._engine.diagnostics import metrics
from torch_xla._engine.graph.program import GraphSpec

_SHOWN = 8  # buffers, or results, in a message
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
#: "Out of memory allocating 17179869184 bytes", "trying to allocate 16.00GiB"
_AMOUNT = re.compile(r"alloc\w*\s+(?:of\s+|request for\s+)?(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B|bytes)?\b", re.IGNORECASE)


class XlaError(RuntimeError):
    """XLA could not compile or run a graph, or move a value. The tensors are as they were; it can be tried again."""


class explained:
    """In its block, an error of XLA becomes an XlaError, or torch.OutOfMemoryError, that says what this was.

    Args:
      doing: gives what follows "while", such as ``uploading float32[2, 3]``; called after an error only.
      device: the ordinal of the xla device.
      spec: the graph, if it is one that was compiled or run.
    """

    def __init__(self, doing: Callable[[], str], device: int, spec: GraphSpec | None = None) -> None:
        self._doing, self._device, self._spec = doing, device, spec

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *rest: object) -> None:
        if not isinstance(error, jax.errors.JaxRuntimeError):
            return
        text, doing = str(error), self._doing()
        if "RESOURCE_EXHAUSTED" in text or "out of memory" in text.lower():
            raise torch.OutOfMemoryError(_out_of_memory(text, doing, self._device, self._spec)) from error
        line = f"  while {doing} on {_place(self._device)}, at {frames.user_line()}"
        raise XlaError("\n".join([_first_line(text), line, *_graph(self._spec)])) from error


def describe_graph(spec: GraphSpec) -> str:
    """``a graph of 12 ops``."""
    return f"a graph of {len(spec.nodes)} op{'s'[: len(spec.nodes) != 1]}"


def asked_for(text: str) -> int | None:
    """The bytes that an error of XLA says it could not have; None where it does not say."""
    found = _AMOUNT.search(text)
    return None if found is None else int(float(found[1]) * _UNITS[found[2].upper()])


def _out_of_memory(text: str, doing: str, device: int, spec: GraphSpec | None) -> str:
    amount = asked_for(text)
    asked = "an amount that XLA does not say" if amount is None else metrics.format_bytes(amount)
    return "\n".join(
        [
            f"out of memory on {_place(device)} while {doing}, at {frames.user_line()}",
            f"  asked for: {asked} ({_first_line(text)})",
            *_graph(spec),
            *_held(device),
            "  What helps: a smaller batch; bfloat16; `del` of tensors that are kept from step to step (losses in a "
            "list: append loss.detach()); torch_xla.sync() at the end of each step; torch.utils.checkpoint.",
        ]
    )


def _held(device: int) -> list[str]:
    buffers: list[jax.Array] = [b for b in recorder.module().live_buffers(device) if not b.is_deleted()]
    total = sum(b.nbytes for b in buffers)
    largest = sorted(buffers, key=lambda b: -b.nbytes)[:_SHOWN]
    lines = [f"  held by live tensors: {metrics.format_bytes(total)} in {len(buffers)} buffers; the largest:"]
    return lines + [f"    {metrics.format_bytes(b.nbytes):>10}  {b.dtype}{list(b.shape)}" for b in largest]


def _bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * int(dtypes.to_numpy(dtype).itemsize)


def _graph(spec: GraphSpec | None) -> list[str]:
    """The largest results of a graph, each with its op."""
    if spec is None:
        return []
    results = [
        (_bytes(shape, dtype), node.op, shape, dtype)
        for node in spec.nodes
        for shape, dtype in node.outs
        if dtype is not None
    ]
    results.sort(key=lambda result: -result[0])
    lines = [f"  {describe_graph(spec)}; its largest results:"]
    return lines + [
        f"    {metrics.format_bytes(size):>10}  {op}: {str(dtype).removeprefix('torch.')}{list(shape)}"
        for size, op, shape, dtype in results[:_SHOWN]
    ]


def _place(device: int) -> str:
    return f"xla:{device} ({devices.device(device).device_kind})"


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0]
