"""Keep the step counts of a loaded optimizer on the CPU, where a fresh optimizer keeps them.

``torch.load(path, map_location="xla")`` moves the state of an optimizer to the device, and ``load_state_dict`` of torch
moves everything but ``step`` to the device of its parameter. The optimizers read these scalars for each parameter in
each step: on xla every read would run a program and wait for it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import optim

from torch_xla._engine.compat import torch_modules

#: torch's optimizers whose scalar state is on the CPU, unless they are ``capturable`` or ``fused``. ASGD's is on the
#: device of the parameter.
_WITH_SCALARS_ON_CPU = (
    optim.Adadelta, optim.Adagrad, optim.Adam, optim.Adamax, optim.NAdam, optim.RAdam, optim.RMSprop, optim.Rprop,
)  # fmt: skip
_SCALARS = ("step", "mu_product")


def patch_load_state_dict() -> None:
    """Wrap ``torch.optim.Optimizer.load_state_dict``: torch has a hook for one optimizer, but none for all."""
    torch_modules.wrap_load_optimizer_state(_load_state_dict)


def _load_state_dict(original: Callable[..., Any], optimizer: optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    result = original(optimizer, *args, **kwargs)
    if isinstance(optimizer, _WITH_SCALARS_ON_CPU):
        for group in optimizer.param_groups:
            if not (group.get("capturable") or group.get("fused")):
                for parameter in group["params"]:
                    _move_scalars_to_cpu(optimizer.state.get(parameter, {}))
    return result


def _move_scalars_to_cpu(state: dict[str, Any]) -> None:
    for name in _SCALARS:
        value = state.get(name)
        if isinstance(value, torch.Tensor) and value.device.type == "xla" and value.numel() == 1:
            state[name] = value.cpu()
