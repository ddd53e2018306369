"""One step of a device: a graph from its collection to the values of its nodes.

    collected -> program found, or described, lowered and compiled -> launched: the nodes have their values
        │    └── not worth a program (storms.py) -> interpreted: the nodes have their values
        └────────────────── any error: nothing has changed ─────────┘

A Step belongs to the thread that has the device's execution lock, and lives as long as that. What watches (dumps,
reports, journals) looks before the launch, where it may fail without harm, or after it, where it is logged instead.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from torch_xla._engine.base.settings import settings
from torch_xla._engine.device import devices, precision
from torch_xla._engine.diagnostics import errors, observer
from torch_xla._engine.execution import dump, modes, op_by_op, programs, storms, together
from torch_xla._engine.graph import specs
from torch_xla._engine.job import replicas, thread_group
from torch_xla._engine.lowering.apply import LoweringError
from torch_xla._engine.parallel import replicated, watchdog


class Step:
    """A recorder Graph on its way. What several rooms ask of it is worked out once.

    Args:
      graph: what was collected; the execution lock of its device is held.
      one_by_one: whether each operation is to run alone (op_by_op.py), where one device can.
      section: what asked for it, as dumps name it.
    """

    def __init__(self, graph: Any, one_by_one: bool = False, section: str = dump.SYNC) -> None:
        self.graph, self.device = graph, graph.device
        self.section = section
        self.one_by_one = one_by_one or modes.eager()
        self.products = precision.current()

    @functools.cached_property
    def spec(self) -> specs.GraphSpec:
        """The graph, spelled out; for what does not know it yet, and for what shows it."""
        return specs.describe(self.graph, self.products)

    def run(self) -> Sequence[jax.Array]:
        """Computes the graph, and gives its nodes their values. Returns these; they may still be computing.

        Raises where that cannot be done: LoweringError, XlaError, torch.OutOfMemoryError, or an unexpected one. The
        values that were asked for are then noted to have failed (Graph.fail): pending as before, they would be in every
        later graph, which would fail with them. An interrupt (KeyboardInterrupt) fails nothing.
        """
        modes.before_run(self.graph.key)
        devices.devices()  # raises in a process that was forked from one with programs and buffers
        try:
            if settings.XLA_SAVE_TENSORS_FILE is not None:
                dump.append(self)
            return self._run()
        except Exception as error:
            node = error.node if isinstance(error, LoweringError) else None
            self.graph.fail(errors.recreate_error(error, *error.args), node)
            raise

    def _run(self) -> Sequence[jax.Array]:
        if self.one_by_one and not replicas.is_spmd() and not self._exchanges():
            return self._one_by_one()
        threads = thread_group.current()
        if threads is not None and programs.is_together(self):
            return together.run(threads, self)
        found = programs.known(self)
        if found is None:
            results = storms.interpret(self)
            if results is not None:
                return results
            found = programs.compiled(self)
        if not found.repeated:
            storms.runs(self, found)
        return self.launch(found)

    def launch(self, found: programs.Program) -> Sequence[jax.Array]:
        """Runs a program, on the leaves as they lie or as it wants them."""
        leaves = found.placed(self.graph)
        if found.team is not None:
            watchdog.launching(found.exchanges, found.team)
        if found.handlers is not None:
            found.handlers.take_threads(found.calls_python)
        run = observer.execution(self.graph, self.device)
        try:
            with run.launching():
                results, token = self.graph.launch(found.executable, leaves)
        except jax.errors.JaxRuntimeError as error:
            raise errors.explain(error, f"running {found.outline}", self.device, found.outline) from error
        run.under_way(results, token)
        if found.team is not None:
            watchdog.launched(results, found.sizes.smallest)
        return results  # type: ignore[no-any-return]

    def _one_by_one(self) -> Sequence[jax.Array]:
        start = time.perf_counter_ns()
        results = op_by_op.run(self, [replicated.local(leaf) for leaf in self.leaves()])
        self.graph.finish(results)
        observer.chain_ended(self.device, start, modes.eager())
        return results

    def leaves(self) -> Sequence[jax.Array]:
        """The arrays that the graph reads."""
        found: Sequence[jax.Array] = self.graph.inputs()
        return found

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Its number operands, packed: floats (float64) and ints (int64)."""
        return self.graph.floats(), self.graph.ints()

    def _exchanges(self) -> bool:
        """Whether replicas exchange values in the graph, which then runs as a whole."""
        return replicas.world_size() > 1 and replicated.team_of(self.spec) is not None
