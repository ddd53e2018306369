"""Keep the step counts of compiled optimizers on the device, as dynamo does on CUDA.

``torch.optim.AdamW(model.parameters())`` keeps its step counts on the CPU. A graph that reads them cannot be one
operation on xla. On CUDA, dynamo sets ``capturable=True`` when it traces ``step()``; here, the same is done for xla.
A learning rate that is a number is a constant of the graph: if a scheduler has changed it, a warning says what to pass.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from torch_xla._engine.base import import_hooks, messages, user_frames
from torch_xla._engine.compat import dynamo

#: The learning rates that the last trace of an optimizer saw; None after the warning.
_traced_rates: weakref.WeakKeyDictionary[torch.optim.Optimizer, list[Any] | None] = weakref.WeakKeyDictionary()


def patch_compiled_optimizers() -> None:
    """Wrap what dynamo does before it traces an optimizer, when dynamo is imported."""
    import_hooks.on_import("torch._dynamo.variables.optimizer", lambda _: dynamo.wrap_set_capturable(_set_capturable))


def _set_capturable(original: Callable[..., Any], variable: Any, *args: Any) -> Any:
    optimizer: torch.optim.Optimizer = variable.value
    _check_rates(optimizer)
    for group in optimizer.param_groups:
        if group.get("capturable") is False and all(p.device.type == "xla" for p in group["params"]):
            group["capturable"] = True
            for parameter in group["params"]:
                _move_scalars(optimizer.state.get(parameter, {}), parameter.device)
    return original(variable, *args)


def _check_rates(optimizer: torch.optim.Optimizer) -> None:
    groups = [g for g in optimizer.param_groups if any(p.device.type == "xla" for p in g["params"])]
    rates = [group.get("lr") for group in groups if isinstance(group.get("lr"), float)]
    before = _traced_rates.setdefault(optimizer, rates)
    if before is None or before == rates or len(before) != len(rates):
        return
    _traced_rates[optimizer] = None
    name = type(optimizer).__name__
    messages.warn(
        messages.compose(
            f"torch.compile traced {name}.step() again at {user_frames.user_line()}",
            f"the learning rate changed from {before[0]:g} to {rates[0]:g}; a number is a constant of the graph",
            f'pass {name}(..., lr=torch.tensor({before[0]:g}, device="xla")), which schedulers change in place',
        )
    )


def _move_scalars(state: dict[str, Any], device: torch.device) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim():
            state[name] = value.to(device)
