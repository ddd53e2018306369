"""Traced numbers that torch reads: a tensor on the CPU, or one that is made of a number.

torch.zeros(2) + n, torch.full((2,), n)     a condition, as int(n): the result is not computed again in a replay
torch.tensor(n, device="xla")               an input: recorded as torch.full
torch.tensor([n], device="xla")             a condition
tensor * n, on the device                   an operand of the graph: an input
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine.replay.traced_number import TracedNumber, escape_all, has_traced

_FROM_DATA = (torch.tensor, torch.as_tensor, torch.asarray, torch.Tensor.new_tensor)


class NumberReads(TorchFunctionMode):
    """Makes the value of a number that torch reads on the host a condition."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not has_traced(args) and not has_traced(kwargs.values()):
            return func(*args, **kwargs)
        if func in _FROM_DATA:
            made = _fill_tensor(func, args, kwargs)
            if made is not None:
                return made
        found = func(*args, **kwargs)
        if func in _FROM_DATA or not _has_device_tensor((found, *args, *kwargs.values())):
            for value in (*args, *kwargs.values()):
                escape_all(value)
        return found


def _fill_tensor(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """Return the tensor of one number on the device as a fill, whose number is an operand; None for any other call."""
    *owner, value = args or (None,)
    if not isinstance(value, TracedNumber) or not kwargs.keys() <= {"dtype", "device"}:
        return None
    defaults = (owner[0].dtype, owner[0].device) if owner else (torch.get_default_dtype(), torch.get_default_device())
    dtype, device = (kwargs.get(name) or default for name, default in zip(("dtype", "device"), defaults, strict=True))
    if torch.device(device).type != "xla":
        return None
    return torch.full((), value, dtype=dtype, device=device)


def _has_device_tensor(values: Sequence[Any]) -> bool:
    return any(
        (isinstance(value, torch.Tensor) and value.device.type == "xla")
        or (isinstance(value, list | tuple) and _has_device_tensor(value))
        for value in values
    )
