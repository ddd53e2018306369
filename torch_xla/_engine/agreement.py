"""That all processes of a team compile the same graph: compared through the job's key-value store before they do.

Processes whose graphs differ at a collective would wait for each other forever. So at each graph with collectives that
a process has not compiled yet it publishes what the graph does, and compares. A graph that is known costs nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import zlib
from collections.abc import Sequence

from torch_xla._engine import coordination, frames, program, replicas
from torch_xla._engine.replicated import Team
from torch_xla._engine.settings import settings


def describe(spec: program.GraphSpec) -> list[str]:
    """The ops of a graph, a line each, without what may differ between replicas (what is donated, what is kept)."""
    leaves = [f"input {dtype}{list(shape)}" for shape, dtype in spec.leaves]
    return leaves + [f"{node.op}{_show(node.args)} -> {_show(node.outs)}" for node in spec.nodes]


def _show(value: object) -> str:
    return repr(value).replace("torch.", "")


def _exchanges(spec: program.GraphSpec) -> list[str]:
    """The collectives of a graph, a line each: what, of which shapes, among whom."""
    nodes = [node for node in spec.nodes if program.is_collective(node)]
    return [f"{node.op}{_show([v for tag, v in node.args if tag == 0])} -> {_show(node.outs)}" for node in nodes]


def summary(spec: program.GraphSpec, key: bytes) -> str:
    """The collectives of a graph in a line, with the graph's key where all else is the same."""
    return f"{'; '.join(_exchanges(spec))} (graph {key.hex()[:8]})"


def _digest(lines: list[str]) -> bytes:
    return hashlib.sha256("\n".join(lines).encode()).digest()


def reach(spec: program.GraphSpec, members: Team) -> bool:
    """Returns when the team's processes have all come here with the same collectives; whether all else is the same too.

    A number that is 0 on one rank and 1 on the next, say, makes the graphs differ in no way that matters.
    Raises RuntimeError that names the ranks and the first op that differs, or the ranks that have not come in time.
    """
    ranks = list(members.ordinals)
    lines = describe(spec)
    try:
        digests = coordination.exchange("graph", _digest(_exchanges(spec)) + _digest(lines), ranks)
    except coordination.Late as late:
        raise _missing(spec, late) from late
    if len({digest[:32] for digest in digests}) > 1:
        texts = coordination.exchange("graph/text", zlib.compress("\n".join(lines).encode()), ranks)
        raise _differing([zlib.decompress(text).decode().split("\n") for text in texts], ranks)
    return len(set(digests)) == 1


def _missing(spec: program.GraphSpec, late: coordination.Late) -> RuntimeError:
    first = next(node.op for node in spec.nodes if program.is_collective(node))
    return RuntimeError(
        f"{first}: rank {replicas.process_index()} has a new graph at {frames.user_line()} and rank {late.process} has "
        f"not come to compile it too within {settings.XLA_RENDEZVOUS_TIMEOUT} s (XLA_RENDEZVOUS_TIMEOUT). Every rank "
        "must record the same collectives and end its steps in the same places"
    )


def _differing(graphs: list[list[str]], ranks: Sequence[int]) -> RuntimeError:
    mine = graphs[ranks.index(replicas.process_index())]
    other = next(position for position, graph in enumerate(graphs) if graph != graphs[0])
    pairs = itertools.zip_longest(graphs[0], graphs[other], fillvalue="(nothing)")
    at, (one, two) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    same = [rank for rank, graph in zip(ranks, graphs, strict=True) if graph == mine]
    return RuntimeError(
        "the graphs of the ranks differ at a collective, so they would wait for each other forever. First difference, "
        f"at op {at}:\n  rank {ranks[0]}: {one}\n  rank {ranks[other]}: {two}\n"
        f"This graph was cut at {frames.user_line()}, on ranks {same}. Every rank must record the same ops between two "
        "steps: look for code that runs on some ranks only, and for shapes that depend on the rank"
    )
