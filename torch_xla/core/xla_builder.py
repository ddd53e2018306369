"""Computations of the user's own: jax functions as operations, and a builder of XLA's operations, on jax."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import torch

from torch_xla._engine.capture import constant_keys, jax_function
from torch_xla.core import _builder
from torch_xla.core._builder import Builder, Computation, Op, Shape, Type

__all__ = [
    "Builder", "Computation", "Op", "Shape", "Type", "call_jax", "create_builder", "create_computation",
    "get_computation_hlo", "jax_func_to_xla_computation", "mkleaf", "mkop", "mkparam", "mkshape", "tensor_shape",
    "xla_computation_as_func",
]  # fmt: skip


def call_jax(
    jax_func: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any] | None = None,
    name: str | None = None,
    override_hash: Hashable = None,
) -> Any:
    """Records ``jax_func(*args, **kwargs)`` on xla tensors, as one operation of the graph.

    Args:
      jax_func: a function of jax arrays, without side effects. It is traced once for each structure, shapes, dtypes
        and constants of its arguments, with 64-bit types on, as torch has them: ``jnp.zeros(3)`` is float64 there.
        What it closes over is a constant of the program, as for jax.jit: arrays are copied when the function is
        traced, and calls of the same function do not see later changes. A callback (jax.pure_callback) runs with the
        step: what the callback itself closes over has its values of then.
      args, kwargs: structures that jax knows (tuples, lists, dicts, registered classes). Their xla tensors become
        arrays; all other leaves are constants of the program, which is compiled again for others. They are compared
        by value, functions, classes and modules by identity.
      name: what the operation is called in dumps, reports and HLO; by default the function's own name.
      override_hash: what the function is known by instead of itself: one that is made anew for each call is traced once
        if it comes with the same value each time. It must then compute the same.

    Returns:
      What the function gives, with xla tensors of jax's dtypes in place of arrays. They have no gradient:
      ``torch_xla.interop.jax_function`` makes a differentiable function.

    Raises:
      TypeError: a tensor is not on xla, a constant has no hash or no ``__eq__``, or a result has a dtype that torch
        lacks.
      ValueError: the function uses a value of another jax transformation.
      RuntimeError: the tensors are on several devices.
    """
    return jax_function.call_jax(jax_func, args, kwargs, name, override_hash)


def create_builder(name: str) -> Builder:
    """What the Ops of one computation belong to."""
    return Builder(name)


def mkshape(dtype: str, sizes: Sequence[int]) -> Shape:
    """The shape of an array: a name of Type, and sizes."""
    return Shape.create(dtype, sizes)


def tensor_shape(tensor: torch.Tensor, device: Any = None) -> Shape:
    """The shape of an array like a tensor's."""
    return Shape.create(Type.from_torch_type(tensor.dtype), tensor.shape)


def mkparam(builder: Builder, param_num: int, shape: Shape) -> Op:
    """A parameter of the computation, from 0. ValueError for a number that is taken."""
    return _builder.parameter(builder, param_num, shape)


def mkleaf(builder: Builder, num: int, tensor: torch.Tensor) -> Op:
    """A parameter of a tensor's shape."""
    return _builder.parameter(builder, num, tensor_shape(tensor))


def mkop(name: str, ops: Sequence[Op], **kwargs: Any) -> Op:
    """The operation of that name in XLA (``Add``, ``SliceInDim``) of these operands. AttributeError for none."""
    return _builder.by_name(name, ops, **kwargs)


def create_computation(name: str, fn: Callable[..., Op], shapes: Sequence[Shape], **kwargs: Any) -> Computation:
    """The computation that ``fn`` makes of parameters of these shapes."""
    builder = Builder(name)
    return fn(*(_builder.parameter(builder, i, shape) for i, shape in enumerate(shapes)), **kwargs).build(name)


def jax_func_to_xla_computation(
    jax_func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None, name: str | None = None
) -> Computation:
    """A jax function on arguments like these, as for call_jax, as a computation of their tensors in order."""
    # The computation is traced when it is used, and the arrays are the caller's.
    args, kwargs = jax.tree.map(constant_keys.copy_array, (tuple(args), dict(kwargs or {})))
    signature = jax_function.flatten_arguments("jax_func_to_xla_computation", args, kwargs)

    def flat(*arrays: Any) -> Any:
        positional, named = signature.arguments(arrays)
        return jax_func(*positional, **named)

    return Computation(
        name or jax_function.function_name(jax_func), flat, jax_function.shape_structs(signature.tensors)
    )


def get_computation_hlo(computation: Computation) -> str:
    """The computation as HLO text."""
    return computation.hlo()


def xla_computation_as_func(computation: Computation) -> Callable[..., Any]:
    """The computation as a function of xla tensors, recorded as one operation."""
    return computation
