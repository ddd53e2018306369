"""Pictures of how tensors lie on the devices."""

from __future__ import annotations

import io
from typing import Any

import rich.console
import torch
from jax.sharding import Sharding
from rich.table import Table

from torch_xla.distributed.spmd.xla_sharding import get_sharding


def visualize_tensor_sharding(t: torch.Tensor, use_color: bool = True, **kwargs: Any) -> Table:
    """Draws which devices hold which part of a tensor with 1 or 2 dimensions, prints it, and returns the table.

    Rows are the parts along the first dimension, columns those along the second; a cell names the devices that hold the
    part. Further arguments go to rich.table.Table. Raises ValueError for other tensors, and one without a sharding yet.
    """
    table = _table(_sharding("visualize_tensor_sharding", t), tuple(t.shape), use_color, kwargs)
    rich.console.Console().print(table)
    return table


def text(t: torch.Tensor) -> str:
    """The same picture as plain text. Raises as visualize_tensor_sharding."""
    out = io.StringIO()
    rich.console.Console(file=out, width=120).print(_table(_sharding("text", t), tuple(t.shape), False, {}))
    return out.getvalue()


def _sharding(op: str, t: torch.Tensor) -> Sharding:
    sharding = get_sharding(t)
    if sharding is None:
        raise ValueError(f"{op}: nothing says yet how this tensor lies; sync or mark it first")
    if t.dim() not in (1, 2):
        raise ValueError(f"{op}: a tensor of shape {list(t.shape)} has no picture, only 1 and 2 dimensions")
    return sharding


def _table(sharding: Any, shape: tuple[int, ...], use_color: bool, options: dict[str, Any]) -> Table:
    cells = _cells(sharding, shape)
    kind = next(iter(sharding.device_set)).platform.upper()
    rows, columns = sorted({row for row, _ in cells}), sorted({column for _, column in cells})
    table = Table(show_header=False, show_lines=True, **options)
    for row in rows:
        texts = [f"{kind} {', '.join(map(str, cells[row, column]))}" for column in columns]
        table.add_row(*texts, style="bold" if use_color else None)
    return table


def _cells(sharding: Any, shape: tuple[int, ...]) -> dict[tuple[int, int], list[int]]:
    """The numbers of the devices that hold the part which begins at (row, column)."""
    cells: dict[tuple[int, int], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        starts = [part.start or 0 for part in index]
        cells.setdefault((starts[0], starts[1] if len(starts) > 1 else 0), []).append(device.id)
    return {place: sorted(ids) for place, ids in cells.items()}
