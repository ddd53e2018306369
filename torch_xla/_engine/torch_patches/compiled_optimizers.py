"""Keep the step counts of compiled optimizers on the device, as dynamo does on CUDA.

``torch.optim.AdamW(model.parameters())`` keeps its step counts on the CPU. A graph that reads them cannot be one
operation on xla. On CUDA, dynamo sets ``capturable=True`` when it traces ``step()``; here, the same is done for xla.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.base import import_hooks
from torch_xla._engine.compat import dynamo


def patch_compiled_optimizers() -> None:
    """Wrap what dynamo does before it traces an optimizer, when dynamo is imported."""
    import_hooks.on_import("torch._dynamo.variables.optimizer", lambda _: dynamo.wrap_set_capturable(_set_capturable))


def _set_capturable(original: Callable[..., Any], variable: Any, *args: Any) -> Any:
    optimizer: torch.optim.Optimizer = variable.value
    for group in optimizer.param_groups:
        if group.get("capturable") is False and all(p.device.type == "xla" for p in group["params"]):
            group["capturable"] = True
            for parameter in group["params"]:
                _move_scalars(optimizer.state.get(parameter, {}), parameter.device)
    return original(variable, *args)


def _move_scalars(state: dict[str, Any], device: torch.device) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim():
            state[name] = value.to(device)
