"""Where a graph runs: the table of placement.py, and that a program is found under the key that it is stored under."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from torch_xla._engine.compilation import placement
from torch_xla._engine.compilation.placement import (
    MeshPlacement,
    Placement,
    ReplicaGroupPlacement,
    ReplicaThreadsPlacement,
    SingleDevicePlacement,
)
from torch_xla._engine.graph.graph_run import GraphRun
from torch_xla._engine.graph.graph_spec import GraphSpec, NodeSpec
from torch_xla._engine.job import replicas, thread_group

#: (SPMD, the graph has collectives, threads are the replicas, one stands for all): what runs it, whether alone, how it
#: is named, whether others launch it, too, and how many keys a lookup tries.
CASES: dict[tuple[bool, bool, bool, bool], tuple[type[Placement], bool, str, bool, int]] = {
    (True, False, False, False): (MeshPlacement, False, "the devices of a mesh (SPMD)", False, 1),
    (True, True, False, False): (MeshPlacement, False, "the devices of a mesh (SPMD)", False, 1),
    (False, False, False, False): (SingleDevicePlacement, True, "xla:0", False, 1),
    (False, False, True, False): (SingleDevicePlacement, True, "xla:0", False, 2),
    (False, False, False, True): (SingleDevicePlacement, True, "xla:0", False, 2),
    (False, True, False, True): (SingleDevicePlacement, False, "xla:0", False, 2),
    (False, True, True, False): (ReplicaThreadsPlacement, True, "the threads of all replicas", True, 2),
    (False, True, False, False): (ReplicaGroupPlacement, True, "xla:0", True, 1),
}


class Run:
    """A graph on ``xla:0``, of one all_reduce or of one addition, whose description is asked for only where needed."""

    device, precision = 0, object()

    def __init__(self, has_collectives: bool) -> None:
        self.has_collectives, self.described = has_collectives, False
        self.graph = SimpleNamespace(key=b"key", has_any_op=lambda names: self.has_collectives)

    @property
    def spec(self) -> GraphSpec:
        self.described = True
        reduction = [(2, [(1, 0)]), (0, "sum"), (0, 1.0), (0, [])]
        op, args = ("torch_xla::all_reduce", reduction) if self.has_collectives else ("aten::add", [(1, 0), (1, 0)])
        node = NodeSpec(op, 0, cast(Any, args), [((2,), torch.float32)], self.has_collectives)
        return GraphSpec([((2,), torch.float32)], [node], [1], [])


@pytest.mark.parametrize("case", CASES)
def test_table(case: tuple[bool, bool, bool, bool], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.ones(1, device="xla")  # the backend has started
    spmd, has_collectives, threads, represents = case
    kind, is_alone, name, is_launched_together, keys = CASES[case]
    run = Run(has_collectives)
    with ExitStack() as stack:
        monkeypatch.setattr(replicas, "_spmd", spmd)
        if threads:
            group = thread_group.ThreadGroup(1, lambda device: None, lambda tensors: None)
            stack.enter_context(thread_group.thread_replica(group, [0], 0))
        if represents:
            stack.enter_context(replicas.simulate_replicas(1))
        found = Placement.of(cast(GraphRun, run))
        tried = placement.cache_keys(cast(GraphRun, run))
        assert type(found) is kind and found.name == name and found.is_alone == is_alone
        assert (found.group is not None) == is_launched_together
        assert len(tried) == keys and found.cache_key in tried
        # Where no caller else takes part, the graph need not be described to know that.
        assert run.described == (has_collectives and not spmd)
        assert len(found.collective_signature(run.spec)) == (spmd or has_collectives)
