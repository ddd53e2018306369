"""``torch.autocast("xla")`` under the name and with the arguments that xla scripts use."""

from __future__ import annotations

import torch


class autocast(torch.amp.autocast_mode.autocast):
    """Inside the block, or in the decorated function, ops on xla compute in the precision that suits them.

    Matrix products and convolutions compute in ``dtype``; exp, log, softmax, norms, losses and sums in float32; ops
    with several inputs in the widest of their dtypes; all else in the dtypes it is given.

    Args:
      device: an xla device, or its name. None, or left out: ``xla``. A bool stands for ``enabled``, which came first in
        the releases before 2.1.
      enabled: False computes as without autocast, also inside a block of it.
      dtype: torch.bfloat16 (the default) or torch.float16; float16 needs a GradScaler.
      cache_enabled: cast a weight once in a block rather than once in an op.

    Raises ValueError for a device that is not xla.
    """

    def __init__(
        self,
        device: torch.device | str | bool | None = None,
        enabled: bool = True,
        dtype: torch.dtype | None = None,
        cache_enabled: bool = True,
    ) -> None:
        if isinstance(device, bool):
            enabled, device = device, None
        if device is not None and torch.device(device).type != "xla":
            raise ValueError(f"torch_xla.amp.autocast is for xla devices, not for {device}: use torch.autocast there")
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
