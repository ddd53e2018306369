"""The comparison that explains a recompilation can name every ingredient of a graph's key.

Each case records two graphs that differ in one ingredient of the key. A table maps the recorder's lines that hash
something into a key to these cases, and is compared with the recorder's sources, so that the list is complete.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
import torch
import torch.nn.functional as F
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from torch import Tensor

import torch_xla
from tests.fuzz.cross_feature import default_dtype
from torch_xla._engine import recorder
from torch_xla._engine.base import dtypes, sharding_ids
from torch_xla._engine.compilation import placement
from torch_xla._engine.diagnostics.buffer_provenance import UNKNOWN
from torch_xla._engine.diagnostics.recompilation_explanation import RecompilationContext, explain_difference
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.graph.graph_diff import diff_summaries, nearest_summary
from torch_xla._engine.graph.graph_summary import GraphSummary, summarize
from torch_xla._engine.lowering.rules.matmul import EXACT, Precision
from torch_xla._engine.recorder import build

Recording = Callable[[], Tensor | list[Tensor]]


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A materialized value."""
    return torch.ones(shape, dtype=dtype).to("xla")


def sharded_leaf(*shape: int) -> Tensor:
    """The same value, marked as sharded over several devices."""
    mesh = Mesh([jax.devices("cpu")[0]], ("x",))
    number = sharding_ids.sharding_id(NamedSharding(mesh, PartitionSpec("x")), len(shape))
    recorder.bindings().set_sharding(number)
    made: Tensor = recorder.bindings().make_tensor(jax.numpy.ones(shape, "float32"), dtypes.TO_CODE[torch.float32], 0)
    return made


X, Y, WEIGHT, NUMBER, INDEX = (
    lambda: leaf(2, 3),
    lambda: leaf(2, 3),
    lambda: leaf(3),
    lambda: leaf(),
    lambda: leaf(1, dtype=torch.int64),
)


def wanted(make: Recording, precision: Precision = EXACT, place: str = "xla:0") -> GraphSummary:
    """Return a short description of the ops that the tensors need."""
    made = make()
    nodes = recorder.bindings().nodes_of(made if isinstance(made, list) else [made])
    return _summary(recorder.bindings().collect_only(0, nodes), precision, place)


def pending(make: Recording) -> GraphSummary:
    """Return the graph of a step that ends while the tensors are alive."""
    torch_xla.sync()
    made = make()
    assert made is not None
    found = _summary(recorder.bindings().collect(0))
    del made
    return found


def _summary(graph: object, precision: Precision = EXACT, place: str = "xla:0") -> GraphSummary:
    return summarize(graph_spec.describe_graph(graph, precision), graph.key, place)  # type: ignore[attr-defined]


def in_float64(make: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def made() -> Tensor:
        with default_dtype(torch.float64):
            return make()

    return made


def viewed_before(view: Callable[[Tensor], Tensor]) -> Tensor:
    """A view that is replayed after its base was written to."""
    memory = X().clone()
    shown = view(memory)
    memory.add_(Y())
    return shown + 1


def row(memory: Tensor) -> Tensor:
    return memory.select(0, 1)


def row_in_float64(memory: Tensor) -> Tensor:
    with default_dtype(torch.float64):
        return memory.select(0, 1)


def written_through(number: int) -> Tensor:
    memory = X().clone()
    memory.unbind(0)[number].add_(Y()[0])
    return memory


def second_draw() -> Tensor:
    torch.rand(2, device="xla")
    return torch.rand(2, device="xla")


def first_draw() -> Tensor:
    torch_xla.sync()  # which restarts the offsets
    return torch.rand(2, device="xla")


def two_draws(apart: bool) -> list[Tensor]:
    torch_xla.sync()
    generator = torch.Generator("xla") if apart else None
    return [torch.rand(2, device="xla"), torch.rand(2, device="xla", generator=generator)]


def normed(weight: bool, bias: bool, eps: float = 1e-5) -> Tensor:
    return F.layer_norm(X(), (3,), WEIGHT() if weight else None, WEIGHT() if bias else None, eps)


def tensors_of(make: Callable[[Tensor, Tensor], list[Tensor]]) -> list[Tensor]:
    return make(X(), Y())


def donating(keeps: bool) -> Callable[[], list[Tensor]]:
    def made() -> list[Tensor]:
        x = X()
        return [x + 2.5, *([x] if keeps else [])]

    return made


def resharded_leaf(axis: str | None) -> Tensor:
    number = sharding_ids.sharding_id(
        NamedSharding(Mesh([jax.devices("cpu")[0]], ("x",)), PartitionSpec(axis, None)), 2
    )
    return recorder.bindings().resharded(X() + 2.5, number + (axis is None))


NAN = float("nan")
#: Ingredient -> two recordings, and the kind of difference.
CASES: dict[str, tuple[Recording, Recording, str]] = {
    "op": (lambda: X().exp(), lambda: X().sin(), "ops"),
    "in place": (lambda: X().clone() + Y(), lambda: X().clone().add_(Y()), "ops"),
    "written through a view": (lambda: viewed_before(row), lambda: row(X().clone()) + 1, "ops"),
    "which result is written": (lambda: written_through(0), lambda: written_through(1), "argument"),
    "which result": (lambda: X().max(0)[0], lambda: X().max(0)[1], "argument"),
    "shape": (lambda: leaf(2).exp(), lambda: leaf(3).exp(), "inputs"),
    "rank": (lambda: leaf(2).exp(), lambda: leaf(2, 3).exp(), "inputs"),
    "dtype": (lambda: X().exp(), lambda: leaf(2, 3, dtype=torch.float64).exp(), "inputs"),
    "sharding of an input": (lambda: leaf(2, 3).exp(), lambda: sharded_leaf(2, 3).exp(), "layout"),
    "sharding of a result": (lambda: resharded_leaf("x"), lambda: resharded_leaf(None), "argument"),
    "type of a number": (lambda: X() * 2, lambda: X() * 2.5, "argument"),
    "complex number": (lambda: X() * 2, lambda: X() * 2j, "argument"),
    "constant": (lambda: X() * 1, lambda: X() * -1, "argument"),
    "constant or operand": (lambda: X() * 1, lambda: X() * 2, "argument"),
    "negative zero": (lambda: X() + 0.0, lambda: X() + -0.0, "argument"),
    "int or unsigned": (lambda: X() + 3, lambda: X() + 2**63, "argument"),
    "int or float": (lambda: X() + 1, lambda: X() + 1.0, "argument"),
    "int or bool": (lambda: X() + 1, lambda: X() + True, "argument"),
    "number or tensor": (lambda: X() + 2, lambda: X() + NUMBER(), "argument"),
    "tensor or nothing": (lambda: normed(True, False), lambda: normed(False, True), "argument"),
    "number or nothing": (lambda: X().clamp(2), lambda: X().clamp(None, 2), "argument"),
    "list of numbers": (
        lambda: tensors_of(lambda x, y: list(torch._foreach_add([x, y], [2.5, 3.5]))),
        lambda: tensors_of(lambda x, y: list(torch._foreach_add([x, y], [2.5, 1.0]))),
        "argument",
    ),
    "equal numbers": (
        lambda: tensors_of(lambda x, y: list(torch._foreach_add([x, y], [2.5, 3.5]))),
        lambda: tensors_of(lambda x, y: list(torch._foreach_add([x, y], [2.5, 2.5]))),
        "argument",
    ),
    "int": (lambda: X().cumsum(0), lambda: X().cumsum(1), "argument"),
    "start": (lambda: X().narrow(1, 0, 2).exp(), lambda: X().narrow(1, 1, 2).exp(), "argument"),
    "size of a slice": (lambda: X().narrow(1, 0, 2).exp(), lambda: X().narrow(1, 0, 1).exp(), "argument"),
    "part or all": (lambda: X().narrow(1, 0, 2).exp(), lambda: X().narrow(1, 0, 3).exp(), "argument"),
    "float": (lambda: normed(True, True), lambda: normed(True, True, 1e-6), "argument"),
    "nan": (lambda: normed(True, True, NAN), lambda: normed(True, True, -NAN), "argument"),
    "complex": (lambda: X().pow(2j), lambda: X().pow(3j), "argument"),
    "bool": (lambda: X().sum(0, keepdim=False), lambda: X().sum(0, keepdim=True), "argument"),
    "text": (
        lambda: torch.div(X(), Y(), rounding_mode="trunc"),
        lambda: torch.div(X(), Y(), rounding_mode="floor"),
        "argument",
    ),
    "ints": (lambda: X().permute(0, 1).clone(), lambda: X().permute(1, 0).clone(), "argument"),
    "length of ints": (lambda: X().sum((0,)), lambda: X().sum((0, 1)), "argument"),
    "dtype asked for": (lambda: X().sum(dtype=torch.float64), lambda: X().sum(dtype=torch.int64), "argument"),
    "nothing asked for": (lambda: X().sum(), lambda: X().sum(dtype=torch.float64), "argument"),
    "tensors in a list": (
        lambda: tensors_of(lambda x, y: [torch.cat([x, y])]),
        lambda: tensors_of(lambda x, y: [torch.cat([x, y, x])]),
        "wiring",
    ),
    "position in a list": (lambda: X()[:, INDEX()], lambda: X()[INDEX()], "argument"),
    "wiring": (
        lambda: tensors_of(lambda x, y: [(x + y) * x]),
        lambda: tensors_of(lambda x, y: [(x + y) * y]),
        "wiring",
    ),
    "an input twice": (
        lambda: tensors_of(lambda x, y: [x + y]),
        lambda: tensors_of(lambda x, y: [x + x]),
        "wiring",
    ),
    "which draw": (first_draw, second_draw, "argument"),
    "whose draw": (lambda: two_draws(False), lambda: two_draws(True), "ops"),
    "default dtype": (lambda: X().exp(), in_float64(lambda: X().exp()), "setting"),
    "default dtype of a view": (lambda: viewed_before(row), lambda: viewed_before(row_in_float64), "setting"),
    "results": (
        lambda: [y := X().exp(), y.sin()][1:],
        lambda: [y := X().exp(), y.sin()],
        "results",
    ),
    "order of results": (
        lambda: [y := X().exp(), y.sin()],
        lambda: [y := X().exp(), y.sin()][::-1],
        "results",
    ),
}
#: The same, for the graph of a step.
STEPS: dict[str, tuple[Recording, Recording, str]] = {
    "donation": (donating(False), donating(True), "results"),
}

#: The recorder's lines that hash something into the key of a graph -> the cases that cover them.
INGREDIENTS = {
    # of a node
    "op->key.mix(std::string_view(op->name));": ["which result"],
    "key.mix(std::string_view(name));": ["op", "in place"],
    "node_->key.mix(value->shape().hash);": ["shape", "rank", "dtype"],
    "node->key.mix(operand->shape().hash);": ["shape", "rank", "dtype"],
    "node->key.mix(value->shape().hash);": ["sharding of a result"],
    "node->key.mix(static_cast<uint64_t>(sharding));": ["sharding of a result"],
    "item->key.mix(static_cast<uint64_t>(out));": ["which result"],
    "node->key.mix(0x5CA77E2ull);": ["written through a view"],
    "node->key.mix(static_cast<uint64_t>(out));": ["which result is written"],
    "node.key.mix(kDefaultDtype + (static_cast<uint64_t>(dtype) << 32));": ["default dtype", "default dtype of a view"],
    "node_->key.mix(static_cast<uint64_t>(draw.offset));": ["which draw", "whose draw"],
    # of its arguments
    "node_->key.mix(kNone);": ["tensor or nothing", "number or nothing", "position in a list"],
    "node_->key.mix(kList + (static_cast<uint64_t>(list.size()) << 32));": ["tensors in a list", "list of numbers"],
    "node_->key.mix(kUnsigned);": ["int or unsigned"],
    "mix_scalar(node_->key, number);": ["number or tensor", "type of a number", "int or float", "int or bool"],
    "mix_scalar(node_->key, value);": ["number or nothing", "type of a number"],
    "mix_scalar(node_->key, element);": ["list of numbers"],
    "node_->key.mix(kUniform);": ["equal numbers"],
    "mix_attribute(node_->key, value);": ["int", "dtype asked for"],
    "mix_attribute(node->key, node->attrs[i]);": ["int"],
    "mix_attribute(key, value);": ["constant", "negative zero"],
    "mix_attribute(key, element);": ["ints"],
    "key.mix(kBaked);": ["constant or operand"],
    "key.mix(kOperand + (value.isInt() ? 1ull << 32 : value.isDouble() ? 2ull << 32 : 3ull << 32));": [
        "type of a number",
        "complex number",
    ],
    "key.mix(kNone);": ["nothing asked for"],
    "key.mix(kInt);": ["int or float", "int or bool"],
    "key.mix(static_cast<uint64_t>(value.toInt()));": ["int"],
    "key.mix(kBool + (value.toBool() ? 1ull << 32 : 0));": ["bool", "int or bool"],
    "key.mix(kDouble);": ["int or float"],
    "key.mix(bits(value.toDouble()));": ["float", "nan", "negative zero"],
    "key.mix(kComplex);": ["complex"],
    "key.mix(bits(value.toComplexDouble().real()));": ["complex"],
    "key.mix(bits(value.toComplexDouble().imag()));": ["complex"],
    "key.mix(kString);": ["text"],
    "key.mix(std::string_view(value.toStringRef()));": ["text"],
    "key.mix((ints ? kInts : kList) + (static_cast<uint64_t>(list.size()) << 32));": ["length of ints"],
    "key.mix(static_cast<uint64_t>(element.toInt()));": ["ints"],
    # of the graph
    "graph_.key.mix(layout_hash(*node));": ["shape", "sharding of an input"],
    "graph_.key.mix(node->key);": ["op"],
    "graph_.key.mix((static_cast<uint64_t>(input->pending()) << 32) | input->index);": ["wiring", "an input twice"],
    "graph.key.mix((static_cast<uint64_t>(root->pending()) << 32) | root->index);": ["results", "order of results"],
    "graph.key.mix(0xD0000000ull | position);": ["donation"],
    "node.key.mix(kStart);": ["part or all"],
    "node.key.mix(static_cast<uint64_t>(range.end - range.begin));": ["size of a slice"],
    "graph.key.mix(static_cast<uint64_t>(varies));": ["start"],
    "graph.key.mix(static_cast<uint64_t>(graph.starts[i]));": ["start"],
}
#: Files that hash something else: streams of draws, strides of views, stacks of Python; and how a shape is hashed.
OTHERS = {
    "generator.cpp",
    "strided_layout.cpp",
    "view_layout.cpp",
    "source_location.cpp",
    "rng_state.cpp",
    "output_spec_cache.cpp",
    "hash.h",
}
SHAPE = {
    "key.mix(static_cast<uint64_t>(dtype));",
    "key.mix(static_cast<uint64_t>(sizes.size()));",
    "key.mix(static_cast<uint64_t>(size));",
}


def test_each_ingredient_has_a_case() -> None:
    sources: Path = build.recorder_extension().sources
    texts = [
        path.read_text() for path in sources.rglob("*.*") if path.suffix in (".cpp", ".h") and path.name not in OTHERS
    ]
    calls = re.compile(r"^ +((?:[\w.>-]*key\.mix|mix_scalar|mix_attribute)\(.*;)$", re.MULTILINE)
    assert {line for text in texts for line in calls.findall(text)} - SHAPE == set(INGREDIENTS)
    assert {case for cases in INGREDIENTS.values() for case in cases} <= {*CASES, *STEPS}


def named(old: GraphSummary, new: GraphSummary, kind: str) -> None:
    assert old.key != new.key
    assert diff_summaries(old, new).kind == diff_summaries(new, old).kind == kind
    assert nearest_summary(new, [new, old]) is new, "among equally close graphs the equal one"
    words = explain_difference(diff_summaries(old, new), RecompilationContext("train.py:9", "", (), (UNKNOWN,) * 9, 3))
    assert words.kind not in ("nothing", "unknown") and "train.py:9" in words.text, words.text


@pytest.mark.parametrize("case", CASES)
def test_ingredient(case: str) -> None:
    old, new, kind = CASES[case]
    if case in ("rank", "dtype", "sharding of an input", "shape"):
        assert len(wanted(old).leaves) == len(wanted(new).leaves)
    named(wanted(old), wanted(new), kind)


@pytest.mark.parametrize("case", STEPS)
def test_ingredient_of_a_step(case: str) -> None:
    old, new, kind = STEPS[case]
    named(pending(old), pending(new), kind)


@pytest.mark.parametrize("case", CASES)
def test_equal_graphs_have_no_difference(case: str) -> None:
    first = CASES[case][0]
    old, new = wanted(first), wanted(first)
    assert old.key == new.key and diff_summaries(old, new).kind == "nothing"


def test_lookup_key_besides_the_graph_key() -> None:
    key = "replicas.is_spmd() else run.device, run.graph.key, id(run.precision))"
    assert key in inspect.getsource(placement.cache_keys)
    fast = Precision(jax.lax.Precision.DEFAULT, jax.lax.Precision.HIGHEST)
    exact, loose, spread = (wanted(lambda: X() @ Y().t(), *rest) for rest in ((), (fast,), (EXACT, "a mesh")))
    assert exact.key == loose.key == spread.key
    for other, words in (
        (loose, "to DEFAULT (matmuls), HIGHEST (convolutions)"),
        (spread, "xla:0 to a mesh"),
    ):
        found = explain_difference(diff_summaries(exact, other), RecompilationContext("train.py:9", "", (), (), 3))
        assert found.kind == "setting" and words in found.text, found.text


def test_only_evicted_programs_are_reported_as_evicted() -> None:
    old = wanted(lambda: X().exp())
    again = explain_difference(
        diff_summaries(old, wanted(lambda: X().exp())), RecompilationContext("train.py:9", "", (), (), 1)
    )
    assert (
        again.kind == "nothing"
        and "its program was evicted from the cache\nfix: raise XLA_COMPILATION_CACHE_SIZE" in again.text
    )


def test_forwarded_concatenation_has_the_same_key() -> None:
    def past() -> Tensor:
        return torch.cat([X(), Y()], 1)[:, 1:3] + 2.5

    assert wanted(past).key == wanted(lambda: X()[:, 1:3] + 2.5).key
