"""The names of graphs on disk: two graphs of one name are one program, in every process and whatever is around them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import pytest
import torch
from hypothesis import Phase, given, settings
from torch import nn

import torch_xla
from tests.fuzz import test_random_programs
from torch_xla._engine.base import dtypes
from torch_xla._engine.compilation import compile_graph, program_cache
from torch_xla._engine.compilation.persistent_cache import cache as persistent_cache
from torch_xla._engine.compilation.persistent_cache import graph_key
from torch_xla._engine.graph.graph_spec import GraphSpec, NodeSpec
from torch_xla._engine.lowering import RULES, decompose
from torch_xla._engine.lowering.rules.matmul import Precision


class Seen:
    """(name, StableHLO) of each program compiled in a block; ``unnamed`` counts those without a name."""

    def __init__(self) -> None:
        self.texts: dict[str, set[str]] = {}
        self.unnamed = 0

    def add(self, name: str | None, text: str) -> None:
        if name is None:
            self.unnamed += 1
        else:
            self.texts.setdefault(name, set()).add(hashlib.sha256(text.encode()).hexdigest())

    def check(self) -> None:
        """Raises AssertionError where a name stands for several programs."""
        assert [name for name, texts in self.texts.items() if len(texts) > 1] == []


@contextmanager
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    found = Seen()

    def build(lower: Callable[[], Any], places: Any, graph: str | None, calls: Any) -> Any:
        lowered = lower()
        found.add(graph, lowered.as_text())
        return lowered.compile(), False

    with monkeypatch.context() as patch:
        patch.setattr(persistent_cache, "load_or_compile", build)
        program_cache.cache.clear()
        yield found
    program_cache.cache.clear()


def test_random_programs_of_one_name_are_one(monkeypatch: pytest.MonkeyPatch) -> None:
    options = settings(max_examples=60, derandomize=True, phases=(Phase.generate,), **test_random_programs.OPTIONS)
    with seen(monkeypatch) as found:
        options(given(test_random_programs.PROGRAMS)(test_random_programs.run))()
    found.check()
    assert len(found.texts) > 60 and found.unnamed == 0


def spec_of(compute: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[GraphSpec, list[jax.Array]]:
    """The graph that ``compute`` records, and its leaves."""
    found: list[Any] = []
    compiled = compile_graph.compile_graph

    def note(spec: GraphSpec, placement: Any, leaves: Any) -> Any:
        found.append((spec, list(leaves)))
        return compiled(spec, placement, leaves)

    with monkeypatch.context() as patch:
        patch.setattr(compile_graph, "compile_graph", note)
        torch_xla.sync()
        program_cache.cache.clear()
        kept = compute()
        torch_xla.sync()
    del kept
    return found[-1]  # type: ignore[no-any-return]


def product() -> torch.Tensor:
    x = torch.arange(6.0).to("xla").reshape(2, 3)
    return (x @ x.t()).add_(0.5).sum(-1)


DEVICE = jax.devices()[0]

#: What changes a program, one thing at a time.
CHANGES: dict[str, Callable[[GraphSpec], GraphSpec]] = {
    "an op": lambda spec: _with(spec, op="aten::sub.Tensor"),
    "a schema kind": lambda spec: _with(spec, schema_kind=2),
    "an argument": lambda spec: _with(spec, args=[*spec.nodes[-1].args, (0, 7)]),
    "True for 1": lambda spec: _with(spec, args=[(0, True)]),
    "1 for True": lambda spec: _with(spec, args=[(0, 1)]),
    "1.0": lambda spec: _with(spec, args=[(0, 1.0)]),
    "-0.0": lambda spec: _with(spec, args=[(0, -0.0)]),
    "0.0": lambda spec: _with(spec, args=[(0, 0.0)]),
    "a dtype as argument": lambda spec: _with(spec, args=[(0, torch.float16)]),
    "its name as argument": lambda spec: _with(spec, args=[(0, "torch.float16")]),
    "the dtype of a result": lambda spec: _with(spec, outs=[(spec.nodes[-1].outs[0][0], torch.float64)]),
    "a list of results": lambda spec: _with(spec, is_list=True),
    "the default dtype": lambda spec: _with(spec, default_dtype=torch.float64),
    "the shape of a leaf": lambda spec: replace(spec, leaves=[((1, 6), torch.float32), *spec.leaves[1:]]),
    "the dtype of a leaf": lambda spec: replace(spec, leaves=[((6,), torch.int64), *spec.leaves[1:]]),
    "results": lambda spec: replace(spec, roots=[*spec.roots, 0]),
    "donation": lambda spec: replace(spec, donated=[0]),
    "precision": lambda spec: replace(spec, precision=Precision(jax.lax.Precision.DEFAULT)),
    "sharding of a result": lambda spec: replace(spec, root_shardings=[1]),
    "numbers": lambda spec: replace(spec, floats=spec.floats + 1),
    "whole numbers": lambda spec: replace(spec, ints=spec.ints + 1),
}


def _with(spec: GraphSpec, **changes: Any) -> GraphSpec:
    return replace(spec, nodes=[*spec.nodes[:-1], replace(spec.nodes[-1], **changes)])


def test_whatever_changes_a_program_changes_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, leaves = spec_of(product, monkeypatch)
    names = {
        what: graph_key.graph_cache_key(change(spec), leaves, DEVICE, True, False) for what, change in CHANGES.items()
    }
    names["nothing"] = graph_key.graph_cache_key(spec, leaves, DEVICE, True, False)
    names["may not donate"] = graph_key.graph_cache_key(spec, leaves, DEVICE, False, False)
    names["checks values"] = graph_key.graph_cache_key(spec, leaves, DEVICE, True, True)
    assert None not in names.values() and len(set(names.values())) == len(names)
    # Where an op was recorded is not in its program.
    assert (
        graph_key.graph_cache_key(replace(spec, leaf_origins=[None] * 9), leaves, DEVICE, True, False)
        == names["nothing"]
    )
    # The array itself has the sharding of a leaf, whatever its id in this process.
    assert {*GraphSpec.__slots__} == {"leaves", "nodes", "roots", "donated", "precision", "leaf_origins", "floats",
                                      "root_shardings", "ints", "leaf_shardings"}, "is it in the name?"  # fmt: skip
    assert {*NodeSpec.__slots__} == {"op", "schema_kind", "args", "outs", "is_list", "origin", "default_dtype"}


#: What is around a graph while it is traced.
AROUND: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "nothing": nullcontext,
    "storage dtypes": lambda: dtypes.override_storage_dtypes({torch.float32: torch.bfloat16}),
    "jax's precision": lambda: jax.default_matmul_precision("bfloat16"),
    "64-bit types": lambda: jax.enable_x64(True),
    "no jit": lambda: jax.disable_jit(True),
    "promotion": lambda: jax.numpy_dtype_promotion("strict"),
}


def test_what_is_around_a_graph_is_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, leaves = spec_of(product, monkeypatch)
    names = set()
    for block in AROUND.values():
        with block():
            names.add(graph_key.graph_cache_key(spec, leaves, DEVICE, True, False))
    assert None not in names and len(names) == len(AROUND)
    with monkeypatch.context() as patch:  # a machine whose bfloat16 kernels are others
        patch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "another")
        names.add(graph_key.graph_cache_key(spec, leaves, DEVICE, True, False))
    with monkeypatch.context() as patch:  # another release
        patch.setattr(graph_key, "engine_fingerprint", lambda: b"other sources")
        names.add(graph_key.graph_cache_key(spec, leaves, DEVICE, True, False))
    assert len(names) == len(AROUND) + 2
    with jax.set_mesh(jax.make_mesh((1,), ("x",))):
        assert graph_key.graph_cache_key(spec, leaves, DEVICE, True, False) is None


def test_leaves_as_they_lie(monkeypatch: pytest.MonkeyPatch) -> None:
    spec, (leaf,) = spec_of(product, monkeypatch)
    weak = jax.numpy.asarray(1.5) + jax.numpy.zeros(())
    pinned = jax.device_put(leaf, jax.sharding.SingleDeviceSharding(DEVICE, memory_kind="pinned_host"))
    names = {
        graph_key.graph_cache_key(spec, [x], DEVICE, True, False)
        for x in (leaf, leaf.astype("bfloat16"), leaf[:1], pinned, weak)
    }
    assert None not in names and len(names) == 5


def test_functions_of_the_users_have_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """What such an op is is known in this process only."""
    spec, leaves = spec_of(product, monkeypatch)
    for op in ("torch_xla::jax_call", "torch_xla::reshard", "torch_xla::all_reduce", "mine::op", "aten::no_such_op"):
        assert graph_key.graph_cache_key(_with(spec, op=op), leaves, DEVICE, True, False) is None
    assert graph_key.graph_cache_key(_with(spec, args=[(0, object())]), leaves, DEVICE, True, False) is None
    op = next(iter(decompose.decomposition_table()))
    assert graph_key.graph_cache_key(_with(spec, op=op), leaves, DEVICE, True, False) is not None
    monkeypatch.setitem(decompose.decomposition_table(), op, lambda *args: args)
    graph_key._is_portable_op.cache_clear()
    assert graph_key.graph_cache_key(_with(spec, op=op), leaves, DEVICE, True, False) is None
    monkeypatch.undo()
    graph_key._is_portable_op.cache_clear()


def test_every_rule_is_known_or_of_this_process() -> None:
    unknown = {op for op in RULES if not graph_key._is_portable_op(op)}
    assert unknown == {
        "torch_xla::mark_pattern", "torch_xla::all_reduce", "torch_xla::all_gather", "torch_xla::reduce_scatter",
        "torch_xla::all_to_all", "torch_xla::ragged_all_to_all",
        "torch_xla::collective_permute", "torch_xla::collective_broadcast",
        "torch_xla::stablehlo_custom_call", "torch_xla::jax_call", "torch_xla::reshard", "torch_xla::to_manual",
        "torch_xla::from_manual", "torch_xla::shard_alike", "torch_xla::to_memory_kind",
    }  # fmt: skip


def test_a_training_step_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with seen(monkeypatch) as found:
        model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(8, 3)).to("xla")
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        for _ in range(2):
            optimizer.zero_grad()
            x, target = torch.randn(2, 1, 4, 4, device="xla"), torch.tensor([0, 2]).to("xla")
            nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()
            torch_xla.sync()
    found.check()
    assert found.unnamed == 0 and found.texts
