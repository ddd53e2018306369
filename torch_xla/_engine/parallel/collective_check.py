"""Check that all processes of a replica group run the same collectives, before a graph is compiled.

Processes whose collectives differ deadlock or mix up values. Before a process compiles a graph with collectives, it
publishes their signatures in the job's key-value store under the number of the launch, and compares them with the
signatures that other processes have published. Of two processes that differ, the later one raises.

    process 0: launch 7 is new: publish torch_xla/graph/0.1/7/0 = [all_reduce(sum) -> float32[8]]
    process 1: launch 7 is new: publish torch_xla/graph/0.1/7/1 = [all_gather(0) -> float32[8]]; differs: raise

The check does not wait: other processes may have compiled their graph earlier and publish nothing, at no cost.
``watchdog`` detects mismatches between graphs that are already compiled. Everything other than collectives may differ
between processes: results, donated inputs, constants. With SPMD all processes run one program, so all ops are compared.
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

_ENDED = "no collective: the process has exited"

_launches: Counter[tuple[int, ...]] = Counter()


def collective_signature(nodes: Sequence[graph_spec.NodeSpec], every_op: bool) -> list[str]:
    """Return a line per collective, or per op: operator, constants with the replica groups, output specs."""
    wanted = [node for node in nodes if every_op or graph_spec.is_collective(node)]
    return [f"{node.op}({_settings(node)}) -> {_format_output_specs(node)}" for node in wanted]


def _settings(node: graph_spec.NodeSpec) -> str:
    return ", ".join(repr(value) for tag, value in node.args if tag == graph_spec.ArgTag.CONSTANT)


def signature_summary(lines: Sequence[str], key: bytes) -> str:
    """Return the collectives of a graph as one line, with the start of the graph key."""
    return f"{'; '.join(lines)} (graph {key.hex()[:8]})"


def _format_output_specs(node: graph_spec.NodeSpec) -> str:
    return ", ".join(f"{str(dtype).removeprefix('torch.')}{list(shape)}" for shape, dtype in node.outs)


class CollectiveMismatchError(RuntimeError):
    """The collectives of two ranks differ."""


def _launch_label(ordinals: tuple[int, ...]) -> str:
    return f"{'.'.join(map(str, ordinals))}/{_launches[ordinals]}"


def count_launch(members: ReplicaGroup) -> str:
    """Count a launch of the replica group and return its label, which is the same on every rank."""
    label = _launch_label(members.ordinals)
    _launches[members.ordinals] += 1
    return label


def check_before_compile(lines: Sequence[str], members: ReplicaGroup) -> None:
    """Compare a graph's collectives with those that other processes compile for the same launch.

    Raises:
      CollectiveMismatchError: names the ranks and the first collective that differs.
    """
    if replicas.process_count() > 1:
        compare_signatures(lines, f"graph/{_launch_label(members.ordinals)}")


def compare_signatures(mine: Sequence[str], label: str) -> None:
    """Publish the collectives of a launch and compare them with those of the other ranks.

    Raises:
      CollectiveMismatchError: another rank has published other collectives under this label.
    """
    rank = replicas.process_index()
    _publish(label, mine)
    for name, text in coordination.coordination_client().key_value_dir_get_bytes(f"torch_xla/{label}/"):
        theirs = zlib.decompress(text).decode().split("\n")
        if theirs != list(mine):
            raise _mismatch_error(rank, mine, int(name.rsplit("/", 1)[1]), theirs)


def _publish(label: str, lines: Sequence[str]) -> None:
    text = zlib.compress("\n".join(lines).encode())
    name = f"torch_xla/{label}/{replicas.process_index()}"
    coordination.coordination_client().key_value_set_bytes(name, text, allow_overwrite=True)


def announce_exit() -> None:
    """Publish to all replica groups of this process that it has exited, so that ranks waiting for it fail."""
    all_ordinals = tuple(range(replicas.process_count()))
    for ordinals in {all_ordinals, *_launches}:
        for kind in ("graph", "stalled"):
            _publish(f"{kind}/{_launch_label(ordinals)}", [_ENDED])


def _mismatch_error(rank: int, mine: Sequence[str], other: int, theirs: list[str]) -> CollectiveMismatchError:
    pairs = itertools.zip_longest(mine, theirs, fillvalue="no collective: the step ends here")
    number, (here, there) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return CollectiveMismatchError(
        f"collectives differ between rank {rank} and rank {other}, which would deadlock. First difference, at "
        f"collective {number} of the step:\n  rank {rank}: {here}\n  rank {other}: {there}\n"
        f"Rank {rank} is at {_line()}. Every rank must record the same collectives in each step: look for "
        "code that runs on some ranks only, and for shapes that depend on the rank"
    )


def _line() -> str:
    """Return the user's line; on other threads, such as the watchdog, that of the main thread."""
    return (
        user_frames.user_line()
        if threading.current_thread() is threading.main_thread()
        else user_frames.main_thread_line()
    )
