"""torch.distributed's object collectives on the host: pickled objects go from process to process, not by the device.

Their tensors have another size at each call, and on a device every size would be a program to compile. So the group
has torch make them on the CPU, and what is as small as they are, and on the CPU, is exchanged by rendezvous.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.compat import distributed
from torch_xla._engine.job import rendezvous

#: Bytes of a tensor that still goes this way, and the dtypes of pickled objects and of their sizes.
_MOST, _DTYPES = 1 << 20, (torch.uint8, torch.int64)


def uses_host_network(tensors: Sequence[torch.Tensor]) -> bool:
    """Whether these go by the host. Ranks decide alike, as they give tensors of the same shapes and dtypes."""
    return all(t.device.type == "cpu" and t.dtype in _DTYPES and t.nbytes <= _MOST for t in tensors)


def all_gather_bytes(group: str, ordinals: Sequence[int], tensors: Sequence[torch.Tensor]) -> list[bytes]:
    """The bytes that each rank of the group gave, in the group's order."""
    payload = b"".join(tensor.detach().contiguous().numpy().tobytes() for tensor in tensors)
    said = dict(zip(sorted(ordinals), rendezvous.rendezvous(f"host {group}", payload, ordinals), strict=True))
    return [said[ordinal] for ordinal in ordinals]


def copy_bytes_into(targets: Sequence[torch.Tensor], data: bytes) -> None:
    """Sets the targets to what ``data`` holds, one after the other."""
    start = 0
    for target in targets:
        if target.numel():
            values = torch.frombuffer(bytearray(data[start : start + target.nbytes]), dtype=target.dtype)
            target.detach().copy_(values.reshape(target.shape))
        start += target.nbytes


def use_cpu_for_objects(kind: type) -> None:
    """Has torch make the tensors of objects on the CPU for groups of this kind."""

    def device(original: Callable[..., str], group: Any = None) -> str:
        group = group or distributed.default_group()
        return "cpu" if isinstance(group, kind) else original(group)

    distributed.wrap_object_device(device)
