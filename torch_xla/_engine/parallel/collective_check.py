"""That the processes of a team run the same collectives: said through the job's key-value store before compiling.

Processes whose collectives differ would wait for each other forever, or mix up values. So at a graph with collectives
that a process has to compile, it publishes them under the number of this launch, and compares with those that others
have published: of two that differ, the later one notices. Nobody waits here, as the others may know their graph
already, which costs nothing (``stall`` notices when two known ones differ). In all else graphs may differ: what is
kept, what is donated, the value of a constant. With SPMD every program is one of all processes, and every op counts.
"""

from __future__ import annotations

import itertools
import threading
import zlib
from collections import Counter
from collections.abc import Sequence

from torch_xla._engine.base import user_frames
from torch_xla._engine.graph import graph_spec
from torch_xla._engine.job import coordination, replicas
from torch_xla._engine.parallel.replica_program import ReplicaGroup

_ENDED = "nothing: it has ended"

_launches: Counter[tuple[int, ...]] = Counter()


def collective_signature(nodes: Sequence[graph_spec.NodeSpec], every_op: bool) -> list[str]:
    """The collectives among the nodes, or every op, a line each: what, of which shapes, among whom."""
    wanted = [node for node in nodes if every_op or graph_spec.is_collective(node)]
    return [f"{node.op}({_settings(node)}) -> {_format_output_specs(node)}" for node in wanted]


def _settings(node: graph_spec.NodeSpec) -> str:
    return ", ".join(repr(value) for tag, value in node.args if tag == 0)


def signature_summary(lines: Sequence[str], key: bytes) -> str:
    """The collectives of a graph in a line, with the graph's key where all else is the same."""
    return f"{'; '.join(lines)} (graph {key.hex()[:8]})"


def _format_output_specs(node: graph_spec.NodeSpec) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in node.outs)


class CollectiveMismatchError(RuntimeError):
    """Ranks exchange different things."""


def _launch_label(ordinals: tuple[int, ...]) -> str:
    return f"{'.'.join(map(str, ordinals))}/{_launches[ordinals]}"


def count_launch(members: ReplicaGroup) -> str:
    """Counts a program that the team runs together; what this launch is called on every rank."""
    place = _launch_label(members.ordinals)
    _launches[members.ordinals] += 1
    return place


def check_before_compile(lines: Sequence[str], members: ReplicaGroup) -> None:
    """Before a graph is compiled: compares what it exchanges with what others compile for the same launch.

    Raises DisagreementError, which names the ranks and the first collective that differs.
    """
    if replicas.process_count() > 1:
        compare_signatures(lines, f"graph/{_launch_label(members.ordinals)}")


def compare_signatures(mine: Sequence[str], place: str) -> None:
    """Publishes what a graph exchanges. Raises DisagreementError where another rank has published something else."""
    rank = replicas.process_index()
    _publish(place, mine)
    for name, text in coordination.coordination_client().key_value_dir_get_bytes(f"torch_xla/{place}/"):
        theirs = zlib.decompress(text).decode().split("\n")
        if theirs != list(mine):
            raise _mismatch_error(rank, mine, int(name.rsplit("/", 1)[1]), theirs)


def _publish(place: str, lines: Sequence[str]) -> None:
    text = zlib.compress("\n".join(lines).encode())
    name = f"torch_xla/{place}/{replicas.process_index()}"
    coordination.coordination_client().key_value_set_bytes(name, text, allow_overwrite=True)


def announce_exit() -> None:
    """Says to all teams of this process that it launches no more: whoever waits for it in a collective learns that."""
    everyone = tuple(range(replicas.process_count()))
    for ordinals in {everyone, *_launches}:
        for kind in ("graph", "stalled"):
            _publish(f"{kind}/{_launch_label(ordinals)}", [_ENDED])


def _mismatch_error(rank: int, mine: Sequence[str], other: int, theirs: list[str]) -> CollectiveMismatchError:
    pairs = itertools.zip_longest(mine, theirs, fillvalue="nothing: its step ends here")
    number, (here, there) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return CollectiveMismatchError(
        f"rank {rank} and rank {other} differ in what they exchange, and would wait for each other forever. First "
        f"difference, at collective {number} of the step:\n  rank {rank}: {here}\n  rank {other}: {there}\n"
        f"Rank {rank} is at {_line()}. Every rank must record the same collectives between two "
        "steps: look for code that runs on some ranks only, and for shapes that depend on the rank"
    )


def _line() -> str:
    """The user's line, also when asked by a thread that only watches: the main thread's."""
    return (
        user_frames.user_line()
        if threading.current_thread() is threading.main_thread()
        else user_frames.main_thread_line()
    )
