"""Scan a function over the first dimension of tensors as one loop, which compiles once for any length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch_xla._engine.capture import aot_partitioner, object_keys
from torch_xla._engine.capture import scan as capture_scan

__all__ = ["default_partition", "scan"]

Carry = TypeVar("Carry")
X = TypeVar("X")
Y = TypeVar("Y")


def default_partition(joint_module: Any, joint_inputs: Any, **options: Any) -> Any:
    """Partition like functorch.compile.default_partition: save all values of forward that backward uses.

    Args:
      joint_module: the graph of forward and backward.
      joint_inputs: its inputs.
      options: further arguments of functorch's partitioner.
    """
    from functorch.compile import default_partition as default  # type: ignore[import-untyped]

    return default(joint_module, joint_inputs, **options)


def scan(
    fn: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    partition_fn: aot_partitioner.Partition = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Carry, Y]:
    """Run this loop as one ``lax.scan`` forward and one backward; differentiable:

        carry, ys = init, []
        for x in xs:  # along dimension 0 of each tensor in xs
            carry, y = fn(carry, x)
            ys.append(y)
        return carry, stack(ys)

    Args:
      fn: traced once, on abstract tensors. It may use xla tensors of enclosing scopes, which receive gradients; draw
        random numbers, which differ between steps; and use autocast, torch.utils.checkpoint, other loops, and
        mark_sharding. It may write to the carry in place: the new value is the result, and ``init`` keeps its value.
        It must not write to other tensors that it has not created, and must not read values.
      init, xs: pytrees of xla tensors and None. ``init`` may be empty, ``xs`` may not.
      partition_fn: selects the values that forward saves for backward, in stacks of ``len(xs)``.
        ``default_partition`` saves the same values as autograd.
        ``functorch.compile.min_cut_rematerialization_partition`` recomputes inexpensive values. Any AOTAutograd
        partitioner works; only its selection is used. It may move saved values to host memory: insert
        ``torch.ops.xla.place_to_host`` at an output of forward and ``place_to_device`` at its placeholder in backward.
      is_fn_pure: do not trace ``fn`` again for the same shapes. It must then use no tensors of enclosing scopes.

    Returns:
      The pair ``(carry, ys)``, pytrees as ``fn`` returns them.

    Raises:
      TypeError: a leaf is not an xla tensor, or ``fn`` does not return a pair.
      ValueError: the tensors of ``xs`` differ in their first dimension; the carry changes its structure, shapes or
        dtypes; or ``partition_fn`` adds other operations.
      RuntimeError: ``fn`` reads a value, or writes to ``xs`` or a tensor of an enclosing scope; or a backward pass
        requires a second derivative.

    Examples:
      Cumulative sums:

      >>> import torch
      >>> from torch_xla.experimental.scan import scan
      >>> def add(total, x):
      ...     total = total + x
      ...     return total, total
      >>> total, sums = scan(add, torch.tensor(0.0, device="xla"), torch.arange(5.0, device="xla"))
      >>> sums.tolist()
      [0.0, 1.0, 3.0, 6.0, 10.0]
    """
    pure_as = object_keys.identity(fn) if is_fn_pure else None
    found: tuple[Carry, Y] = capture_scan.scan(fn, init, xs, aot_partitioner.save_policy_for(partition_fn), pure_as)
    return found
