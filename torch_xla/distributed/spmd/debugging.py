"""Pictures of how tensors lie on the devices."""

from __future__ import annotations

import io
import math
import re
from typing import Any

import numpy as np
import rich.console
import torch
from jax.sharding import Sharding
from rich.table import Table

from torch_xla import runtime
from torch_xla.distributed.spmd.xla_sharding import get_sharding


def visualize_tensor_sharding(t: torch.Tensor, use_color: bool = True, **kwargs: Any) -> Table:
    """Draws which devices hold which part of a tensor with 1 or 2 dimensions, prints it, and returns the table.

    Rows are the parts along the first dimension, columns those along the second; a cell names the devices that hold the
    part. Further arguments go to rich.table.Table. Raises ValueError for other tensors, and one without a sharding yet.
    """
    table = _table(_require_sharding("visualize_tensor_sharding", t), tuple(t.shape), use_color, kwargs)
    rich.console.Console().print(table)
    return table


def visualize_sharding(
    sharding: str, use_color: bool = True, scale: float = 1.0, min_width: int = 9, max_width: int = 80
) -> Table:
    """Draws a sharding in XLA's words, as ``t.sharding_spec`` has them, prints it, and returns the table.

    As visualize_tensor_sharding. Cells are at least ``min_width`` characters wide, and at most ``max_width``; with a
    ``scale`` above 1 their widths grow. Raises ValueError for other words, and for more than 2 dimensions.
    """
    sizes, holders = _parse_op_sharding(sharding)
    rows, columns = (sizes[0], sizes[1]) if len(sizes) == 2 else (sizes[0], 1)
    table = Table(show_header=False, show_lines=True)
    texts = [f"{runtime.device_type()} {', '.join(map(str, ids))}" for ids in holders]
    width = min(max_width, max(min_width, int(scale * max(map(len, texts)))))
    for _ in range(columns):
        table.add_column(width=width)
    for row in range(rows):
        table.add_row(*texts[row * columns : (row + 1) * columns], style="bold" if use_color else None)
    rich.console.Console().print(table)
    return table


_TILED = re.compile(r"\{devices=\[([\d,]+)\](?:([\d,]+)|<=\[([\d,]+)\](?:T\(([\d,]+)\))?)( last_tile_dim_replicate)?\}")


def _parse_op_sharding(sharding: str) -> tuple[list[int], list[list[int]]]:
    """Into how many parts each dimension is split, and of each part the numbers of the devices that hold it."""
    if sharding == "{replicated}":
        return [1], [list(range(runtime.global_runtime_device_count()))]
    one = re.fullmatch(r"\{maximal device=(\d+)\}", sharding)
    if one is not None:
        return [1], [[int(one[1])]]
    found = _TILED.fullmatch(sharding)
    if found is None:
        raise ValueError(f"visualize_sharding: {sharding!r} are not XLA's words for a sharding")
    sizes = _numbers(found[1])
    if found[2]:
        ids = np.array(_numbers(found[2]))
    else:  # counted up in a box, whose dimensions may change places
        ids = np.arange(math.prod(_numbers(found[3]))).reshape(_numbers(found[3]))
        ids = ids.transpose(_numbers(found[4])) if found[4] else ids
    copies = sizes.pop() if found[5] else 1
    if ids.size != math.prod(sizes) * copies or not 1 <= len(sizes) <= 2:
        raise ValueError(f"visualize_sharding: {sharding!r} has no picture, only 1 and 2 dimensions have")
    return sizes, [sorted(part) for part in ids.reshape(-1, copies).tolist()]


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def format_sharding(t: torch.Tensor) -> str:
    """The same picture as plain text. Raises as visualize_tensor_sharding."""
    out = io.StringIO()
    rich.console.Console(file=out, width=120).print(_table(_require_sharding("text", t), tuple(t.shape), False, {}))
    return out.getvalue()


def _require_sharding(op: str, t: torch.Tensor) -> Sharding:
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
