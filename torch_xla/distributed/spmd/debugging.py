"""Visualize the sharding of tensors over devices."""

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
    """Draw which devices hold each shard of a tensor with 1 or 2 dimensions, print it, and return the table.

    Rows are the shards along the first dimension, columns those along the second; a cell lists the devices that hold
    the shard.

    Args:
      t: a tensor with a sharding.
      use_color: color the cells by device.
      kwargs: arguments of rich.table.Table.

    Raises:
      ValueError: the tensor has another rank, or no sharding yet.
    """
    table = _table(_require_sharding("visualize_tensor_sharding", t), tuple(t.shape), use_color, kwargs)
    rich.console.Console().print(table)
    return table


def visualize_sharding(
    sharding: str, use_color: bool = True, scale: float = 1.0, min_width: int = 9, max_width: int = 80
) -> Table:
    """Draw a sharding given in XLA's text format (``t.sharding_spec``), print it, and return the table.

    Args:
      sharding: the text, of a sharding with 1 or 2 dimensions.
      use_color: color the cells by device.
      scale: factor above 1 that widens the cells.
      min_width, max_width: width of a cell in characters.

    Raises:
      ValueError: the text is invalid, or the sharding has more than 2 dimensions.
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
    """Return the partition count of each dimension, and for each shard the numbers of the devices that hold it."""
    if sharding == "{replicated}":
        return [1], [list(range(runtime.global_runtime_device_count()))]
    one = re.fullmatch(r"\{maximal device=(\d+)\}", sharding)
    if one is not None:
        return [1], [[int(one[1])]]
    found = _TILED.fullmatch(sharding)
    if found is None:
        raise ValueError(f"visualize_sharding: {sharding!r} is not a sharding in XLA's text format")
    sizes = _numbers(found[1])
    if found[2]:
        ids = np.array(_numbers(found[2]))
    else:  # iota format: numbered in a box, whose dimensions may be transposed
        ids = np.arange(math.prod(_numbers(found[3]))).reshape(_numbers(found[3]))
        ids = ids.transpose(_numbers(found[4])) if found[4] else ids
    copies = sizes.pop() if found[5] else 1
    if ids.size != math.prod(sizes) * copies or not 1 <= len(sizes) <= 2:
        raise ValueError(f"visualize_sharding: {sharding!r}: only 1 and 2 dimensions are supported")
    return sizes, [sorted(part) for part in ids.reshape(-1, copies).tolist()]


def _numbers(words: str) -> list[int]:
    return [int(word) for word in words.split(",")]


def format_sharding(t: torch.Tensor) -> str:
    """Return the drawing of visualize_tensor_sharding as plain text.

    Args:
      t: an xla tensor with 1 or 2 dimensions.

    Raises:
      ValueError: the tensor has no sharding yet, or more dimensions.
    """
    out = io.StringIO()
    rich.console.Console(file=out, width=120).print(_table(_require_sharding("text", t), tuple(t.shape), False, {}))
    return out.getvalue()


def _require_sharding(op: str, t: torch.Tensor) -> Sharding:
    sharding = get_sharding(t)
    if sharding is None:
        raise ValueError(f"{op}: this tensor has no sharding yet; call torch_xla.sync() or mark_sharding first")
    if t.dim() not in (1, 2):
        raise ValueError(f"{op}: only 1 and 2 dimensions are supported, got a tensor of shape {list(t.shape)}")
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
    """Return the numbers of the devices that hold the shard with offset (row, column)."""
    cells: dict[tuple[int, int], list[int]] = {}
    for device, index in sharding.devices_indices_map(shape).items():
        starts = [part.start or 0 for part in index]
        cells.setdefault((starts[0], starts[1] if len(starts) > 1 else 0), []).append(device.id)
    return {place: sorted(ids) for place, ids in cells.items()}
