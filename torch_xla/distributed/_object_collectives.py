"""Object collectives of torch.distributed over the host network: pickled objects do not pass through the device.

Their tensors differ in size at each call, and a device would compile a program per size. So torch creates them on the
CPU for these groups, and small CPU tensors are exchanged through the rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.compat import distributed
from torch_xla._engine.job import rendezvous

#: Maximum size in bytes of tensors on this path, and the dtypes of pickled objects and of their sizes.
_MOST, _DTYPES = 1 << 20, (torch.uint8, torch.int64)


def uses_host_network(tensors: Sequence[torch.Tensor]) -> bool:
    """Return whether to use the host network. All ranks decide alike: their tensors have equal shapes and dtypes."""
    return all(t.device.type == "cpu" and t.dtype in _DTYPES and t.nbytes <= _MOST for t in tensors)


def all_gather_bytes(group: str, ordinals: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """All-gather the bytes of the tensors; returns one entry per rank, in the group's order."""
    payload = b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)
    said = dict(zip(sorted(ordinals), rendezvous.rendezvous(f"host {group}", payload, ordinals), strict=True))
    return [said[ordinal] for ordinal in ordinals]


def copy_bytes_into(targets: Sequence[torch.Tensor], data: bytes) -> None:
    """Copy consecutive pieces of ``data`` into the targets."""
    start = 0
    for target in targets:
        if target.numel():
            values = torch.frombuffer(bytearray(data[start : start + target.nbytes]), dtype=target.dtype)
            target.detach().copy_(values.reshape(target.shape))
        start += target.nbytes


def use_cpu_for_objects(kind: type) -> None:
    """Make torch create the tensors of objects on the CPU for groups of this class."""

    def device(original: Callable[..., str], group: Any = None) -> str:
        group = group or distributed.default_group()
        return "cpu" if isinstance(group, kind) else original(group)

    distributed.wrap_object_device(device)
