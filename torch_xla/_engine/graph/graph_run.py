"""One run of a collected graph, as data. Execution and compilation read it; derived values are computed once.

A GraphRun belongs to the thread that has the device's execution lock, until that is released. It is passive:
execution/executor.py drives the run.
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
    """A recorder Graph that is about to run, with its settings.

    Args:
      graph: the collected graph; the execution lock of its device is held.
      op_by_op: whether to run each operation separately, if one device can run the graph.
      section: the title of the graph in dumps.

    diagnostics/observer.py sets ``site`` (device, sync reason, user line) on first use.
    """

    site: tuple[int, str, str] | None = None

    def __init__(self, graph: Any, op_by_op: bool, section: str) -> None:
        self.graph, self.device = graph, graph.device
        self.op_by_op, self.section = op_by_op, section
        self.precision = matmul_precision.current_precision()

    @functools.cached_property
    def spec(self) -> graph_spec.GraphSpec:
        """The graph as Python data, for compilation, interpretation and dumps."""
        return graph_spec.describe_graph(self.graph, self.precision)

    def leaves(self) -> Sequence[jax.Array]:
        """Return the input arrays of the graph."""
        found: Sequence[jax.Array] = self.graph.inputs()
        return found

    def scalars(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the packed scalar operands: floats (float64) and ints (int64)."""
        return self.graph.floats(), self.graph.ints()
