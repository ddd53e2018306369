"""Loops whose length the device decides, or a range of numbers: one operation of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture import control_flow, scan
from torch_xla._engine.capture.joint_graph import save_all

__all__ = ["fori_loop", "while_loop"]


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: torch.Tensor) -> tuple[Any, ...]:
    """``(last, upper, *values)`` after ``values = body_fun(*values)`` as often as ``range(lower, upper)`` is long.

    Args:
      lower, upper: Python numbers, and the loop has a gradient (lax.scan); or xla tensors of one integer each, and the
        device decides how long it is (lax.while_loop), without a gradient.
      body_fun: of the values, gives as many, of the same shapes and dtypes; one tensor, or a tuple. See scan for what
        it may do.
      input_value: the values before the first step.

    Raises:
      TypeError: a value is no xla tensor. ValueError or RuntimeError: the values change their form.
    """
    if isinstance(lower, int) and isinstance(upper, int):
        steps = torch.zeros(max(0, upper - lower), dtype=torch.int8, device="xla")
        last, _ = scan.scan(
            lambda values, _: (_tuple(body_fun(*values)), None), tuple(input_value), steps, save_all, what="fori_loop"
        )
        return max(lower, upper), upper, *last
    start, end = (torch.as_tensor(t, device=input_value[0].device) for t in (lower, upper))
    return tuple(
        control_flow.while_loop(
            lambda now, end, *_: now < end,
            lambda now, end, *values: (now + 1, end, *_tuple(body_fun(*values))),
            (start, end, *input_value),
        )
    )


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def while_loop(
    cond_fn: Callable[..., Any],
    body_fn: Callable[..., Any],
    carried_inputs: Sequence[torch.Tensor],
    additional_inputs: Sequence[torch.Tensor] | None = None,
) -> tuple[Any, ...]:
    """``while cond_fn(*carried, *additional): carried = body_fn(*carried, *additional)``, decided on the device.

    The functions may use xla tensors from outside, and draw random numbers. ``torch._higher_order_ops.while_loop`` on
    xla tensors is the same.

    Raises:
      RuntimeError: the values change their shapes or dtypes, ``cond_fn`` does not give one element, or a backward pass
        asks for a gradient, which there is not: use scan, or fori_loop with Python numbers.
    """
    return tuple(control_flow.while_loop(cond_fn, body_fn, tuple(carried_inputs), tuple(additional_inputs or ())))
