"""Report ranks whose graphs differ only in numbers: each variant is a program that the job compiles and keeps.

Most numbers are inputs of a program. Constants are 0, 1, -1, bools, sizes, dimensions and exponents (see
docs/explanation/compilation_and_caching.md): ``x * rank`` is one program on rank 0, another on rank 1, and a third on
the others. Before a rank compiles a graph, it publishes the numbers of the graph under a hash of all else, unless
another rank has; then it compares its own. With SPMD the ranks run one program, so nothing is compared.

Keys in the job's key-value store: torch_xla/numbers/HASH/N, for the N-th such graph of each rank, and
torch_xla/numbers/reported/LINE: one rank reports a line.
"""

from __future__ import annotations

import hashlib
import json
import logging
import zlib
from collections import Counter
from typing import Any

import jax

from torch_xla._engine.base import messages, user_frames
from torch_xla._engine.graph.graph_spec import LIST_TAGS, ArgTag, GraphSpec, NodeSpec
from torch_xla._engine.job import coordination, replicas

_log = logging.getLogger(__name__)

_INPUTS = (ArgTag.FLOAT_INPUT, ArgTag.INT_INPUT, ArgTag.COMPLEX_INPUT)
_AN_INPUT = "an input"

_counts: Counter[str] = Counter()  # graphs of this process, by the hash


def report_differences(spec: GraphSpec) -> None:
    """Log, once in the job for each line, that another rank has compiled this graph with other numbers in it.

    Call it on a rank of a job that is about to compile the graph.
    """
    if not coordination.is_initialized() or replicas.is_spmd():
        return
    numbers: list[str] = []
    skeleton = [_split_numbers(node, numbers) for node in spec.nodes]
    described = repr((skeleton, spec.leaves, spec.roots, spec.donated))
    name = hashlib.sha256(described.encode()).hexdigest()
    key = f"torch_xla/numbers/{name}/{_counts[name]}"
    _counts[name] += 1
    other, theirs = _publish(key, [replicas.process_index(), numbers])
    if theirs != numbers and len(theirs) == len(numbers):
        _report(spec, numbers, other, theirs)


def _split_numbers(node: NodeSpec, numbers: list[str]) -> Any:
    """Return the node without its numbers, which are appended to the list."""

    def mask(arg: Any) -> Any:
        tag, payload = arg
        if tag in LIST_TAGS:
            return tag, [mask(item) for item in payload]
        if tag in _INPUTS:
            numbers.append(_AN_INPUT)
            return "#"
        if tag == ArgTag.CONSTANT and isinstance(payload, (bool, int, float, complex)):
            numbers.append(repr(payload))
            return "#"
        return arg

    return node.op, node.schema_kind, [mask(arg) for arg in node.args], node.outs


def _publish(key: str, value: Any) -> Any:
    """Return the value that the first rank published under this key."""
    store = coordination.coordination_client()
    try:
        store.key_value_set_bytes(key, zlib.compress(json.dumps(value).encode()))
        return value
    except jax.errors.JaxRuntimeError as error:
        if "ALREADY_EXISTS" not in str(error):
            raise
    return json.loads(zlib.decompress(store.blocking_key_value_get_bytes(key, 60_000)))


def _report(spec: GraphSpec, numbers: list[str], other: int, theirs: list[str]) -> None:
    position = next(index for index, pair in enumerate(zip(numbers, theirs, strict=True)) if pair[0] != pair[1])
    node = _node_at(spec, position)
    line = (node.origin.line if node.origin is not None else None) or user_frames.user_line()
    rank = replicas.process_index()
    if _publish(f"torch_xla/numbers/reported/{line}", rank) != rank:
        return
    where = (
        "" if node.origin is not None else ", in the step that ends at this line (XLA_IR_DEBUG=1 names the op's line)"
    )
    text = messages.compose(
        f"rank {rank} and rank {other} compile different programs at {line}",
        f"a number of {node.op} is {numbers[position]} on rank {rank} and {theirs[position]} on rank {other}{where}; "
        "all else in the graphs is equal",
        "if the number depends on the rank, pass it as a tensor: torch.tensor(rank, device='xla')",
    )
    with messages.clear_progress_bars():
        _log.warning("%s", messages.render(text))


def _node_at(spec: GraphSpec, position: int) -> NodeSpec:
    """Return the node with the number at this position."""
    seen: list[str] = []
    for node in spec.nodes:
        _split_numbers(node, seen)
        if len(seen) > position:
            return node
    raise IndexError(position)
