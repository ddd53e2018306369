"""A function over the first dimension of tensors, as one loop of the program: compiled once, however often it runs."""

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
    """AOTAutograd's (functorch.compile.default_partition): backward gets all values of forward that it asks for."""
    from functorch.compile import default_partition as default  # type: ignore[import-untyped]

    return default(joint_module, joint_inputs, **options)


def scan(
    fn: Callable[[Carry, X], tuple[Carry, Y]],
    init: Carry,
    xs: X,
    partition_fn: aot_partitioner.Partition = default_partition,
    is_fn_pure: bool = False,
) -> tuple[Carry, Y]:
    """What this loop gives, with a gradient, as one ``lax.scan`` forward and one backward:

        carry, ys = init, []
        for x in xs:  # along dimension 0 of each tensor in xs
            carry, y = fn(carry, x)
            ys.append(y)
        return carry, stack(ys)

    Args:
      fn: run once, on tensors without values. It may use xla tensors from outside, which get their gradients, draw
        random numbers (others in each step), use autocast, torch.utils.checkpoint, other loops, and mark shardings. It
        must not write to what it has not made, nor need values.
      init, xs: nested structures of xla tensors and None. ``init`` may be empty, ``xs`` not.
      partition_fn: which values forward keeps for backward, a stack of ``len(xs)`` of each. ``default_partition``:
        those that autograd would. ``functorch.compile.min_cut_rematerialization_partition`` computes again what is
        cheap. Any of AOTAutograd's form; only its choice is used.
      is_fn_pure: ``fn`` is not run again for the same shapes. It must then use nothing from outside.

    Returns:
      ``(carry, ys)``: structures as ``fn`` gives them.

    Raises:
      TypeError: a leaf is no xla tensor; ``fn`` gives no pair.
      ValueError: the tensors of ``xs`` differ in their first dimension; the carry changes its structure, shapes or
        dtypes; ``partition_fn`` adds operations.
      RuntimeError: ``fn`` needs a value, or writes to an argument. In a backward pass: a second derivative is asked
        for.
    """
    pure_as = object_keys.identity(fn) if is_fn_pure else None
    found: tuple[Carry, Y] = capture_scan.scan(fn, init, xs, aot_partitioner.save_policy_for(partition_fn), pure_as)
    return found
