"""Host-side rendezvous of replicas (with SPMD: of processes), with an all-gather of bytes."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from torch_xla._engine.base import user_frames
from torch_xla._engine.base.settings import settings
from torch_xla._engine.job import coordination, key_value_exchange, replicas, thread_group


def rendezvous(tag: str, payload: bytes, members: Sequence[int] = ()) -> list[bytes]:
    """Wait for the replicas (default: all) and return their payloads in the order of ordinals.

    Raises ValueError if this replica is not a member, RuntimeError if some do not arrive in time.
    """
    world, mine = replicas.host_group_size(), replicas.host_group_rank()
    ordinals = sorted(set(members)) or list(range(world))
    if mine not in ordinals or ordinals[-1] >= world:
        raise ValueError(f"rendezvous {tag!r}: replicas={ordinals} must be below {world} and include this one, {mine}")
    if len(ordinals) == 1 or replicas.is_simulating_replicas():
        return [payload] * len(ordinals)
    threads = thread_group.current_group()
    if threads is not None:
        return _among_threads(threads, tag, payload, ordinals)
    coordination.initialize()
    try:
        return key_value_exchange.all_gather_bytes("meet/" + quote(tag, safe=""), payload, ordinals)
    except key_value_exchange.PeerTimeoutError as late:
        seconds = f"{settings.TORCH_XLA_RENDEZVOUS_TIMEOUT} s (TORCH_XLA_RENDEZVOUS_TIMEOUT) "
        raise RuntimeError(
            f"rendezvous {tag!r}: replica {mine} waited {'' if late.ended else seconds}at {user_frames.user_line()} "
            f"for replica {late.process}, which has {'ended' if late.ended else 'not arrived'}. All replicas must "
            "reach the same rendezvous in the same order"
        ) from late


def _among_threads(threads: thread_group.ThreadGroup, tag: str, payload: bytes, ordinals: Sequence[int]) -> list[bytes]:
    if len(ordinals) < threads.size:
        raise ValueError(
            f"rendezvous {tag!r}: replica threads require all replicas, not only replicas={list(ordinals)}"
        )
    return thread_group.all_gather_bytes(threads, f"rendezvous {tag!r}", payload)
