"""Call user-defined Pallas kernels on xla tensors; on the CPU, Pallas' interpreter runs them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import torch

from torch_xla._engine.base import dtypes
from torch_xla._engine.capture import jax_function
from torch_xla._engine.device import devices
from torch_xla._engine.platform_kernels import pallas
from torch_xla.experimental.custom_kernel._torch_ops import format_tensors


def jax_import_guard() -> None:
    """Start the device before jax is used, so that jax shares its client instead of creating a second one."""
    devices.platform()


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """Return the jax dtype of a torch dtype, 64-bit ones also if jax's x64 mode is off.

    Args:
      dtype: a torch dtype.

    Raises:
      TypeError: jax has no such dtype.
    """
    try:
        return dtypes.numpy_dtype(dtype)
    except KeyError as error:
        raise TypeError(f"convert_torch_dtype_to_jax: jax does not support {dtype}") from error


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """Return the tensor's shape and dtype as a jax.ShapeDtypeStruct.

    Args:
      tensor: a tensor on any device.
    """
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Sequence[tuple[Sequence[int], torch.dtype]]]
) -> Callable[..., Any]:
    """Return a jax function that calls Pallas kernels as a function of xla tensors.

    The returned function returns a tensor, or a tuple of several, without a gradient
    (``torch_xla.interop.jax_function`` makes differentiable functions). It takes ``static_argnums`` and
    ``static_argnames`` as jax.jit does; arguments that are not tensors are always constants. On the CPU, kernels run in
    Pallas' interpreter, which supports the TPU primitives.

    Args:
      kernel: a function of arrays that returns an array, or a tuple or list of them. It is traced once per combination
        of shapes, dtypes and constants, without jax's x64 mode unless an argument has a 64-bit dtype.
      output_shape_dtype_fn: takes the same arguments; returns a list with the shape and torch dtype of each result.

    Raises:
      TypeError (by a call): a tensor is not on xla, or a constant has no hash.
      ValueError (by a call): results differ from ``output_shape_dtype_fn``.
    """
    implementation = pallas.with_cpu_interpreter(kernel)
    name = jax_function.function_name(kernel.func if isinstance(kernel, functools.partial) else kernel)

    @functools.wraps(kernel)
    def called(
        *args: Any, static_argnums: Any = None, static_argnames: Sequence[str] | str | None = None, **kwargs: Any
    ) -> Any:
        wanted = [(tuple(shape), dtype) for shape, dtype in output_shape_dtype_fn(*args, **kwargs)]
        found = jax_function.call_jax(implementation, args, kwargs, name)
        results = list(found) if isinstance(found, (tuple, list)) else [found]
        given = [(tuple(t.shape), t.dtype) for t in results]
        if given != wanted:
            raise ValueError(
                f"make_kernel_from_pallas: {name} returned {format_tensors(*results)}, but output_shape_dtype_fn "
                f"declared {wanted}"
            )
        return results[0] if len(results) == 1 else tuple(results)

    return called
