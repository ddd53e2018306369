"""User-defined computations: record jax functions as operations, and build computations from XLA operations."""

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
    """Record ``jax_func(*args, **kwargs)`` on xla tensors as one operation of the graph.

    Args:
      jax_func: a function of jax arrays without side effects. It is traced once for each combination of structure,
        shapes, dtypes and constants of its arguments, with 64-bit types enabled, as in torch: ``jnp.zeros(3)`` is
        float64. Values that it closes over are constants of the program, as for jax.jit: arrays are copied when the
        function is traced, and calls of the same function do not see later changes. A callback (jax.pure_callback)
        runs with the step and sees the values of its closure at that time.
      args, kwargs: pytrees (tuples, lists, dicts, registered classes). Their xla tensors become arrays; all other
        leaves are constants of the program, and other constants compile another program. Constants are compared by
        value; functions, classes and modules by identity.
      name: name of the operation in dumps, reports and HLO; default: the name of the function.
      override_hash: identifies the function in place of the function object. A function that is created for each call
        is traced once if it is passed with the same value each time; it must then compute the same.

    Returns:
      The results of the function, with xla tensors of jax's dtypes in place of arrays. They have no gradient; use
      [jax_function][torch_xla.interop.jax_function] for a differentiable function.

    Raises:
      TypeError: a tensor is not on xla, a constant has no hash or no ``__eq__``, or a result has a dtype that torch
        does not support.
      ValueError: the function uses a value of another jax transformation.
      RuntimeError: the tensors are on several devices.

    Examples:
      >>> import jax.numpy as jnp
      >>> import torch
      >>> from torch_xla.core.xla_builder import call_jax
      >>> def cross(a, b):
      ...     return jnp.cross(a, b)
      >>> x = torch.tensor([1.0, 0.0, 0.0], device="xla")
      >>> y = torch.tensor([0.0, 1.0, 0.0], device="xla")
      >>> call_jax(cross, (x, y)).tolist()
      [0.0, 0.0, 1.0]
    """
    return jax_function.call_jax(jax_func, args, kwargs, name, override_hash)


def create_builder(name: str) -> Builder:
    """Return a builder, which collects the Ops of one computation.

    Args:
      name: the name of the computation.
    """
    return Builder(name)


def mkshape(dtype: str, sizes: Sequence[int]) -> Shape:
    """Return the shape of an array, from an element type (see Type) and sizes.

    Args:
      dtype: name of an element type, such as ``f32``; see [Type][torch_xla.core.xla_builder.Type].
      sizes: the sizes of the dimensions.
    """
    return Shape.create(dtype, sizes)


def tensor_shape(tensor: torch.Tensor, device: Any = None) -> Shape:
    """Return the shape of a tensor.

    Args:
      tensor: a tensor on any device.
      device: accepted for compatibility.
    """
    return Shape.create(Type.from_torch_type(tensor.dtype), tensor.shape)


def mkparam(builder: Builder, param_num: int, shape: Shape) -> Op:
    """Return a parameter of the computation; numbers start at 0.

    Args:
      builder: the builder.
      param_num: the number of the parameter.
      shape: its Shape.

    Raises:
      ValueError: the number is in use.
    """
    return _builder.parameter(builder, param_num, shape)


def mkleaf(builder: Builder, num: int, tensor: torch.Tensor) -> Op:
    """Return a parameter with the shape of a tensor.

    Args:
      builder: the builder.
      num: the number of the parameter.
      tensor: the tensor whose shape and dtype it gets.
    """
    return _builder.parameter(builder, num, tensor_shape(tensor))


def mkop(name: str, ops: Sequence[Op], **kwargs: Any) -> Op:
    """Apply the XLA operation ``name`` (``Add``, ``SliceInDim``) to the operands.

    Args:
      name: the name of the operation.
      ops: its operands.
      kwargs: its attributes.

    Raises:
      AttributeError: the operation does not exist.
    """
    return _builder.by_name(name, ops, **kwargs)


def create_computation(name: str, fn: Callable[..., Op], shapes: Sequence[Shape], **kwargs: Any) -> Computation:
    """Return the computation that ``fn`` builds from parameters of these shapes.

    Args:
      name: name of the computation.
      fn: a function of Ops that returns an Op.
      shapes: the shapes of its parameters.
      kwargs: keyword arguments of ``fn``.
    """
    builder = Builder(name)
    return fn(*(_builder.parameter(builder, i, shape) for i, shape in enumerate(shapes)), **kwargs).build(name)


def jax_func_to_xla_computation(
    jax_func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any] | None = None, name: str | None = None
) -> Computation:
    """Convert a jax function, with arguments as for call_jax, to a computation of their tensors in order.

    Args:
      jax_func: the function.
      args, kwargs: example arguments, as for [call_jax][torch_xla.core.xla_builder.call_jax].
      name: name of the computation; default: the name of the function.
    """
    # The function is traced when the computation is used, so it gets the arrays of that call.
    args, kwargs = jax.tree.map(constant_keys.copy_array, (tuple(args), dict(kwargs or {})))
    signature = jax_function.flatten_arguments("jax_func_to_xla_computation", args, kwargs)

    def flat(*arrays: Any) -> Any:
        positional, named = signature.arguments(arrays)
        return jax_func(*positional, **named)

    return Computation(
        name or jax_function.function_name(jax_func), flat, jax_function.shape_structs(signature.tensors)
    )


def get_computation_hlo(computation: Computation) -> str:
    """Return the computation as HLO text.

    Args:
      computation: the result of ``Op.build`` or of create_computation.
    """
    return computation.hlo()


def xla_computation_as_func(computation: Computation) -> Callable[..., Any]:
    """Return the computation as a function of xla tensors, recorded as one operation.

    Args:
      computation: the result of ``Op.build`` or of create_computation.
    """
    return computation
