"""Plain data about a compiled graph: the memory that its program needs, and a summary for messages.

Compilation stores both with the program; diagnostics and the malloc settings of the CPU backend read them.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import torch

from torch_xla._engine.base import dtypes, sharding_ids
from torch_xla._engine.graph.graph_spec import GraphSpec

_LARGEST = 8  # results that an outline lists


@dataclass(slots=True)
class ProgramSizes:
    """The memory of a program in bytes per device.

    Attributes:
      results: the size of each result.
      extra: the memory that the program needs in addition to its inputs while it runs.
      temporary: the part of ``extra`` that is free again when the program has ended.
      smallest: the index of the smallest result.
    """

    results: list[int]
    extra: int = 0
    temporary: int = 0
    smallest: int = field(init=False)  # the index of the smallest result

    def __post_init__(self) -> None:
        self.smallest = min(range(len(self.results)), key=self.results.__getitem__, default=0)


def program_sizes(compiled: jax.stages.Compiled, root_count: int | None = None) -> ProgramSizes:
    """Return the sizes of a program with ``root_count`` results, or all of them.

    ``extra`` and ``temporary`` are 0 if the compiler does not report them.
    """
    results = [
        sharding_ids.bytes_per_device(info.shape, info.dtype.itemsize, info.sharding)
        for info in jax.tree.leaves(compiled.out_info)[:root_count]
    ]
    stats = memory_analysis(compiled)
    if stats is None:
        return ProgramSizes(results)
    temporary = stats.temp_size_in_bytes
    return ProgramSizes(results, stats.output_size_in_bytes + temporary - stats.alias_size_in_bytes, temporary)


def memory_analysis(compiled: jax.stages.Compiled) -> Any:
    """Return XLA's memory statistics of a program; None if the backend has none."""
    try:
        return compiled.memory_analysis()
    except (NotImplementedError, jax.errors.JaxRuntimeError):
        return None


@dataclass(frozen=True, slots=True)
class GraphOutline:
    """Summary of a graph for messages: the number of ops, and the largest results as (bytes, op, shape, dtype)."""

    ops: int
    largest: tuple[tuple[int, str, tuple[int, ...], torch.dtype], ...]

    def __str__(self) -> str:
        return f"a graph of {self.ops} op{'s'[: self.ops != 1]}"


def graph_outline(spec: GraphSpec) -> GraphOutline:
    """Return the outline of a graph."""
    results = [
        (_bytes(shape, dtype), node.op, tuple(shape), dtype)
        for node in spec.nodes
        for shape, dtype in node.outs
        if dtype is not None
    ]
    largest = heapq.nlargest(_LARGEST, results, key=lambda result: result[0])
    return GraphOutline(len(spec.nodes), tuple(largest))


def _bytes(shape: Sequence[int], dtype: torch.dtype) -> int:
    return math.prod(shape) * int(dtypes.storage_numpy_dtype(dtype).itemsize)
