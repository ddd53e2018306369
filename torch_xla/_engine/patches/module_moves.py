"""``module.to("xla")`` keeps its parameters: an optimizer made before the move goes on working, and ties stay ties.

A CPU tensor cannot take over the value of an xla tensor (``.data =``), so torch gives a module that moves new
parameters, and an optimizer would go on updating the old ones without a word. torch has the remedy,
``torch.utils.swap_tensors``, behind a flag for all modules and devices of the process; here it is used for parameters
that move to or from xla, and for no others. ``Module._apply`` is private to torch (checked on 2.13).
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch import nn

from torch_xla._engine.base import frames

_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _moved(before: nn.Parameter | None, after: nn.Parameter | None) -> bool:
    if before is None or after is None or before is after:
        return False
    return "xla" in (before.device.type, after.device.type)


def _keep(before: nn.Parameter, after: nn.Parameter) -> None:
    """``before`` becomes what ``after`` is, and keeps its class, attributes and hooks."""
    hooks = {name: getattr(before, name) for name in _HOOKS}
    after.__class__ = before.__class__
    after.__dict__.update(before.__dict__)
    torch.utils.swap_tensors(before, after)
    for name, value in hooks.items():
        if value:
            setattr(before, name, value)


def _settle(module: nn.Module, old: dict[str, nn.Parameter | None]) -> None:
    done: set[int] = set()  # a parameter may be there under two names
    for name, before in old.items():
        after = module._parameters.get(name)
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
        module._parameters[name] = before


def install() -> None:
    """Wraps Module._apply, once."""
    original: Any = nn.Module._apply
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def apply(self: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        old = dict(self._parameters)
        original(self, *args, **kwargs)
        if old:
            _settle(self, old)
        return self

    apply._torch_xla = True  # type: ignore[attr-defined]
    nn.Module._apply = apply  # type: ignore[method-assign]
