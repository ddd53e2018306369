"""``module.to("xla")`` in place: optimizers created before the move stay valid, and tied weights stay tied.

A CPU tensor cannot take the value of an xla tensor (``.data =``), so torch creates new parameters for a moved module.
An optimizer would silently go on updating the old ones. torch has a solution, ``torch.utils.swap_tensors``, behind a
flag for all modules and devices of the process. This module uses it only for parameters that move to or from xla.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jax.sharding import Sharding
from torch import nn

from torch_xla._engine import recorder
from torch_xla._engine.base import sharding_ids, user_frames
from torch_xla._engine.compat import torch_modules
from torch_xla._engine.parallel import spmd


def _changed_device(before: nn.Parameter | None, after: nn.Parameter | None) -> bool:
    if before is None or after is None or before is after:
        return False
    return "xla" in (before.device.type, after.device.type)


def _swap_into(before: nn.Parameter, after: nn.Parameter) -> None:
    """Make ``before`` equal to ``after``, but preserve its class, attributes and hooks."""
    hooks = torch_modules.parameter_hooks(before)
    after.__class__ = before.__class__
    after.__dict__.update(before.__dict__)
    torch.utils.swap_tensors(before, after)
    for name, value in hooks.items():
        if value:
            setattr(before, name, value)


def _restore_identity(module: nn.Module, old: dict[str, nn.Parameter | None]) -> None:
    done: set[int] = set()  # a parameter may be registered under two names
    registered: Any = torch_modules.direct_parameters(module)  # of a scripted module: without get()
    is_scripted = isinstance(module, torch.jit.ScriptModule)
    for name, before in old.items():
        after = registered[name] if name in registered else None  # noqa: SIM401
        if before is None or after is None or not _changed_device(before, after) and id(before) not in done:
            continue
        if id(before) not in done:
            if is_scripted:  # tensors that C++ refers to cannot be swapped
                registered[name] = nn.Parameter(torch.empty(0), requires_grad=False)
            try:
                _swap_into(before, after)
            except RuntimeError as error:
                registered[name] = after
                warnings.warn(
                    f"torch_xla: {type(module).__name__}.{name} {list(before.shape)} was replaced by a new Parameter "
                    f"on {after.device} (at {user_frames.user_line()}) because the old one is in use: {error}. Create "
                    "optimizers and tie weights after the move.",
                    UserWarning,
                    stacklevel=2,
                )
                continue
            done.add(id(before))
        registered[name] = before


#: Attribute of a meta or CPU tensor: the id of the sharding that it gets when it moves to xla.
_WANTED = "_torch_xla_sharding"


def shard_when_moved(t: torch.Tensor, sharding: Sharding) -> None:
    """Shard a meta parameter or buffer, or a CPU parameter, when its module moves to xla."""
    setattr(t, _WANTED, sharding_ids.sharding_id(sharding, t.dim()))


def _requested_shardings(tensors: Mapping[str, torch.Tensor | None]) -> dict[str, int]:
    return {name: t.__dict__[_WANTED] for name, t in tensors.items() if t is not None and _WANTED in t.__dict__}


def _apply_shardings(tensors: Mapping[str, torch.Tensor | None], shardings: dict[str, int]) -> None:
    """Create new tensors, which have no value yet, in shards."""
    for name, number in shardings.items():
        t = tensors[name]
        if t is not None and t.device.type == "xla":
            with torch.no_grad():
                if recorder.bindings().is_view(t):
                    # torch creates a tensor like a meta tensor as a view of an empty one: only the view would have the
                    # sharding, and lose it at the first write.
                    t.data = torch.empty_like(t)
                recorder.bindings().with_execution_lock(0, recorder.bindings().reshard, t, number)
            t.__dict__.pop(_WANTED, None)
        elif t is not None:
            setattr(t, _WANTED, number)


def _sharded_upload(move: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Wrap a function that moves a tensor: a tensor with a requested sharding is uploaded in shards only."""

    def run(t: torch.Tensor) -> torch.Tensor:
        number = getattr(t, "__dict__", {}).get(_WANTED)
        if number is None or t.is_meta:
            return move(t)
        shape = tuple(t.shape)
        with spmd.upload_sharding(lambda size: sharding_ids.sharding_from_id(number) if size == shape else None):
            return move(t)

    return run


def _apply(
    original: Callable[..., Any], module: nn.Module, fn: Callable[..., Any], *args: Any, **kwargs: Any
) -> nn.Module:
    old = dict(torch_modules.direct_parameters(module))
    shardings, buffers = _requested_shardings(old), _requested_shardings(torch_modules.direct_buffers(module))
    original(module, _sharded_upload(fn) if shardings else fn, *args, **kwargs)
    if old:
        _restore_identity(module, old)
    if shardings or buffers:
        _apply_shardings(torch_modules.direct_parameters(module), shardings)
        _apply_shardings(torch_modules.direct_buffers(module), buffers)
    return module


def patch_module_to() -> None:
    """Wrap what ``Module.to`` does to each module."""
    torch_modules.wrap_module_apply(_apply)
