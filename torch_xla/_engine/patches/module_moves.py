"""``module.to("xla")`` keeps its parameters: an optimizer made before the move goes on working, and ties stay ties.

A CPU tensor cannot take over the value of an xla tensor (``.data =``), so torch gives a module that moves new
parameters, and an optimizer would go on updating the old ones without a word. torch has the remedy,
``torch.utils.swap_tensors``, behind a flag for all modules and devices of the process; here it is used for parameters
that move to or from xla, and for no others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla._engine.base import frames
from torch_xla._engine.base.compat import modules


def _moved(before: nn.Parameter | None, after: nn.Parameter | None) -> bool:
    if before is None or after is None or before is after:
        return False
    return "xla" in (before.device.type, after.device.type)


def _keep(before: nn.Parameter, after: nn.Parameter) -> None:
    """``before`` becomes what ``after`` is, and keeps its class, attributes and hooks."""
    hooks = modules.parameter_hooks(before)
    after.__class__ = before.__class__
    after.__dict__.update(before.__dict__)
    torch.utils.swap_tensors(before, after)
    for name, value in hooks.items():
        if value:
            setattr(before, name, value)


def _settle(module: nn.Module, old: dict[str, nn.Parameter | None]) -> None:
    done: set[int] = set()  # a parameter may be there under two names
    for name, before in old.items():
        after = modules.own_parameters(module).get(name)
        if before is None or after is None or not _moved(before, after) and id(before) not in done:
            continue
        if id(before) not in done:
            try:
                _keep(before, after)
            except RuntimeError as error:
                warnings.warn(
                    f"torch_xla: {type(module).__name__}.{name} {list(before.shape)} became a new Parameter on "
                    f"{after.device} (at {frames.user_line()}), because the old one is in use: {error}. Make "
                    "optimizers, and tie weights, after the move.",
                    UserWarning,
                    stacklevel=2,
                )
                continue
            done.add(id(before))
        modules.own_parameters(module)[name] = before


def _apply(original: Callable[..., Any], module: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
    old = dict(modules.own_parameters(module))
    original(module, *args, **kwargs)
    if old:
        _settle(module, old)
    return module


def install() -> None:
    """Wraps what ``Module.to`` does to each module."""
    modules.wrap_module_apply(_apply)
