"""Values from one replica to another, over a numbered channel between the two: ``xm.send`` and ``xm.recv``."""

from __future__ import annotations

import torch

from torch_xla._engine.base import user_frames
from torch_xla._engine.execution.eager_collectives import EagerCollectives
from torch_xla._engine.job import coordination, replicas, thread_group
from torch_xla._engine.parallel import collectives


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Sends a tensor to the replica that calls ``recv`` with the same channel; returns ``value``.

    The two find each other on the host, so each waits for the other to come, and what was recorded before runs first:
    it must not hold collectives that others have not come to. Who exchanges values both ways must not call ``send``
    first on both sides. A channel belongs to two replicas.

    Raises RuntimeError where nobody comes within XLA_RENDEZVOUS_TIMEOUT seconds, another replica uses the channel, or
    the replicas are threads of one process; ValueError for a tensor that is on no xla device.
    """
    collectives.check_tensors("send", [value])
    mine, other = _endpoints("send", channel_id)
    _transfer(value, mine, other)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receives what another replica sends over the channel into ``output``, and returns it; see send.

    ``output`` has the shape and the dtype of what is sent.
    """
    collectives.check_tensors("recv", [output])
    mine, other = _endpoints("recv", channel_id)
    received = _transfer(torch.zeros_like(output), other, mine)
    with torch.no_grad():
        collectives.copy_into([output], [received])
    return output


def _endpoints(role: str, channel: int) -> tuple[int, int]:
    """This replica's ordinal, and that of the one at the other end."""
    if thread_group.current_group() is not None or replicas.world_size() == 1:
        raise RuntimeError(
            f"{role}: needs another replica, in a process of its own (torch_xla.launch, torchrun); "
            f"at {user_frames.user_line()}. collective_permute works among threads, too"
        )
    coordination.initialize()
    try:
        other = coordination.match_peer(f"channel/{channel}", role, "recv" if role == "send" else "send")
    except TimeoutError as error:
        raise RuntimeError(
            f"{role}: nobody came to the other end of channel {channel} (at {user_frames.user_line()}): {error}"
        ) from error
    return replicas.global_ordinal(), other


def _transfer(value: torch.Tensor, source: int, target: int) -> torch.Tensor:
    pair = [source, target]
    with EagerCollectives(True):
        return collectives.collective_permute(value.detach(), [pair], collectives.PartialGroup([sorted(pair)]))
