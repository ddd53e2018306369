"""Point-to-point transfers over a numbered channel between two replicas: ``xm.send`` and ``xm.recv``."""

from __future__ import annotations

import torch

from torch_xla._engine.base import user_frames
from torch_xla._engine.execution.eager_collectives import EagerCollectives
from torch_xla._engine.job import coordination, key_value_exchange, replicas, thread_group
from torch_xla._engine.parallel import collectives


def send(value: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Send a tensor to the replica that calls ``recv`` with the same channel.

    The two replicas synchronize on the host. Each waits for the other, and pending operations run first; these must not
    contain collectives that other replicas have not reached. Two replicas that exchange values in both directions must
    not both call ``send`` first. A channel belongs to two replicas.

    Args:
      value: xla tensor of any shape and dtype.
      channel_id: number of the channel, the same on both replicas.

    Returns:
      ``value``.

    Raises:
      RuntimeError: the other replica does not arrive within TORCH_XLA_RENDEZVOUS_TIMEOUT seconds, a third replica uses
        the channel, or the replicas are threads of one process.
      ValueError: the tensor is not on an xla device.
    """
    collectives.check_tensors("send", [value])
    mine, other = _endpoints("send", channel_id)
    _transfer(value, mine, other)
    return value


def recv(output: torch.Tensor, channel_id: int) -> torch.Tensor:
    """Receive into ``output`` the tensor that another replica sends over the channel.

    See [send][torch_xla.core.xla_model.send].

    Args:
      output: xla tensor with the shape and dtype of the sent tensor; updated in place.
      channel_id: number of the channel, the same on both replicas.

    Returns:
      ``output``.

    Raises:
      RuntimeError, ValueError: as for send.
    """
    collectives.check_tensors("recv", [output])
    mine, other = _endpoints("recv", channel_id)
    received = _transfer(torch.zeros_like(output), other, mine)
    with torch.no_grad():
        collectives.copy_into([output], [received])
    return output


def _endpoints(role: str, channel: int) -> tuple[int, int]:
    """Return this replica's ordinal and the ordinal of the peer."""
    if thread_group.current_group() is not None or replicas.world_size() == 1:
        raise RuntimeError(
            f"{role}: requires a second replica in another process (torch_xla.launch, torchrun), at "
            f"{user_frames.user_line()}; use collective_permute between replica threads"
        )
    coordination.initialize()
    try:
        other = key_value_exchange.match_peer(f"channel/{channel}", role, "recv" if role == "send" else "send")
    except TimeoutError as error:
        raise RuntimeError(
            f"{role}: no replica joined the other end of channel {channel} (at {user_frames.user_line()}): {error}"
        ) from error
    return replicas.global_ordinal(), other


def _transfer(value: torch.Tensor, source: int, target: int) -> torch.Tensor:
    pair = [source, target]
    with EagerCollectives(True):
        return collectives.collective_permute(value.detach(), [pair], collectives.PartialGroup([sorted(pair)]))
