"""One run of a collected graph, as data: what execution and compilation ask of the graph, each worked out once.

A GraphRun belongs to the thread that has the device's execution lock, and lives as long as that. It holds no code of
the run itself: execution/executor.py drives it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine.device import matmul_precision
from torch_xla._engine.graph import graph_spec


class GraphRun:
    """A recorder Graph that is about to run, with the settings under which it runs.

    Args:
      graph: the collected graph; the execution lock of its device is held.
      op_by_op: whether each operation is to run alone, where one device can run the graph.
      section: what requested the run, as dumps name it.

    ``site``, where and why the graph runs, is set by diagnostics/observer.py when it is first asked for.
    """

    site: tuple[int, str, str] | None = None

    def __init__(self, graph: Any, op_by_op: bool, section: str) -> None:
        self.graph, self.device = graph, graph.device
        self.op_by_op, self.section = op_by_op, section
        self.precision = matmul_precision.current_precision()

    @functools.cached_property
    def spec(self) -> graph_spec.GraphSpec:
        """The graph, spelled out; for a graph without a program, and for what shows it."""
        return graph_spec.describe_graph(self.graph, self.precision)

    def leaves(self) -> Sequence[jax.Array]:
        """The arrays that the graph reads."""
        found: Sequence[jax.Array] = self.graph.inputs()
        return found

    def scalars(self) -> tuple[np.ndarray, np.ndarray]:
        """The graph's number operands, packed: floats (float64) and ints (int64)."""
        return self.graph.floats(), self.graph.ints()
