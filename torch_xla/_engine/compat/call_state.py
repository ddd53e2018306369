"""Private state of torch that decides what a call of a function does: modes, and hooks of all modules."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sized

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_PURPOSE = "torch_xla.compile(replay=True) notices modes and hooks of all modules"
_WITHOUT = "a replayed step ignores modes and hooks that were added after it was recorded"
_MODES = (
    PrivateApi("torch._C", "_len_torch_function_stack", _PURPOSE, _WITHOUT),
    PrivateApi("torch._C", "_len_torch_dispatch_stack", _PURPOSE, _WITHOUT),
)
_HOOKS = tuple(
    PrivateApi(module, name, _PURPOSE, _WITHOUT)
    for module, name in (
        ("torch.nn.modules.module", "_global_forward_hooks"),
        ("torch.nn.modules.module", "_global_forward_pre_hooks"),
        ("torch.nn.modules.module", "_global_backward_hooks"),
        ("torch.nn.modules.module", "_global_backward_pre_hooks"),
        ("torch.optim.optimizer", "_global_optimizer_pre_hooks"),
        ("torch.optim.optimizer", "_global_optimizer_post_hooks"),
    )
)


@functools.cache
def _resolve_names() -> tuple[list[Callable[[], int]], list[Sized]]:
    found = [[entry.resolve_or_none() for entry in entries] for entries in (_MODES, _HOOKS)]
    lengths, tables = ([value for value in values if value is not None] for values in found)
    return lengths, tables


def active_modes() -> int:
    """Return the number of function and dispatch modes of this thread, without that of torch.set_default_device."""
    found = sum(length() for length in _resolve_names()[0])
    return found - (found > 0 and torch.get_default_device().type != "cpu")


def global_hooks() -> int:
    """Return the number of hooks on all modules and optimizers."""
    return sum(map(len, _resolve_names()[1]))
