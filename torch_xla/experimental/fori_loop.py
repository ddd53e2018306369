"""Loops as one operation: over a range of numbers, or with a condition that the device evaluates."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine.capture import control_flow, scan
from torch_xla._engine.capture.joint_graph import save_all

__all__ = ["fori_loop", "while_loop"]


def fori_loop(lower: Any, upper: Any, body_fun: Callable[..., Any], *input_value: torch.Tensor) -> tuple[Any, ...]:
    """Run ``values = body_fun(*values)`` for each number of ``range(lower, upper)``; return ``(last, upper, *values)``.

    Args:
      lower, upper: Python numbers: the loop is differentiable (lax.scan); or xla tensors of one integer each: the
        device determines the number of iterations (lax.while_loop), and there is no gradient.
      body_fun: takes the values and returns values of the same number, shapes and dtypes: one tensor, or a tuple. The
        restrictions of scan apply.
      input_value: the initial values.

    Raises:
      TypeError: a value is not an xla tensor.
      ValueError, RuntimeError: the shapes or dtypes of the values change.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.fori_loop import fori_loop
      >>> x = torch.tensor(1.0, device="xla")
      >>> last, upper, doubled = fori_loop(0, 10, lambda x: x * 2, x)
      >>> doubled.item()
      1024.0
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
    """Run ``while cond_fn(*carried, *additional): carried = body_fn(*carried, *additional)`` on the device.

    The functions may use xla tensors of enclosing scopes and draw random numbers.
    ``torch._higher_order_ops.while_loop`` on xla tensors is equivalent.

    Args:
      cond_fn: returns a one-element tensor.
      body_fn: returns the carried values, with unchanged shapes and dtypes. It may write to them in place;
        ``carried_inputs`` keep their values.
      carried_inputs: initial carried values, xla tensors.
      additional_inputs: loop-invariant xla tensors.

    Returns:
      The final carried values.

    Raises:
      RuntimeError: shapes or dtypes change, ``cond_fn`` does not return one element, or a backward pass needs the
        gradient, which is not supported: use [scan][torch_xla.experimental.scan.scan], or fori_loop with Python
        numbers.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.fori_loop import while_loop
      >>> start = (torch.tensor(0, device="xla"), torch.tensor(1.0, device="xla"))
      >>> count, value = while_loop(lambda n, x: x < 100, lambda n, x: (n + 1, x * 2), start)
      >>> count.item(), value.item()
      (7, 128.0)
    """
    return tuple(control_flow.while_loop(cond_fn, body_fn, tuple(carried_inputs), tuple(additional_inputs or ())))
