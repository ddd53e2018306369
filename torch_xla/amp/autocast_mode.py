"""``torch.autocast("xla")`` under the name and with the arguments of upstream's autocast."""

from __future__ import annotations

import torch


class autocast(torch.amp.autocast_mode.autocast):
    """Run ops on xla in a block, or in a decorated function, in the precision suited to each op.

    Matrix multiplications and convolutions run in ``dtype``; exp, log, softmax, norms, losses and sums in float32; ops
    with several inputs in the widest input dtype; all other ops in the dtypes of their inputs.

    Args:
      device: an xla device, or its name; default: ``xla``. A bool is taken as ``enabled``, the first argument in
        releases before 2.1.
      enabled: False disables autocast, also inside an autocast block.
      dtype: torch.bfloat16 (the default) or torch.float16; float16 needs a GradScaler.
      cache_enabled: cast a weight once per block rather than once per op.

    Raises:
      ValueError: the device is not an xla device.

    Examples:
      >>> import torch
      >>> from torch_xla.amp import autocast
      >>> model = torch.nn.Linear(4, 2).to("xla")
      >>> with autocast("xla", dtype=torch.bfloat16):
      ...     y = model(torch.ones(3, 4, device="xla"))
      >>> y.dtype
      torch.bfloat16
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
            raise ValueError(f"torch_xla.amp.autocast: expected an xla device, got {device}; use torch.autocast there")
        super().__init__("xla", dtype=dtype, enabled=enabled, cache_enabled=cache_enabled)
