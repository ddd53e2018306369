"""Pallas kernels of users as functions of xla tensors; on the CPU, Pallas' interpreter runs them."""

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
    """Starts the device, so that what jax does afterwards finds it there. jax is never a second client here."""
    devices.platform()


def convert_torch_dtype_to_jax(dtype: torch.dtype) -> Any:
    """The jax dtype of the same values; the 64-bit one also where jax has 64-bit types off. TypeError without one."""
    try:
        return dtypes.numpy_dtype(dtype)
    except KeyError as error:
        raise TypeError(f"convert_torch_dtype_to_jax: jax has no {dtype}") from error


def to_jax_shape_dtype_struct(tensor: torch.Tensor) -> jax.ShapeDtypeStruct:
    """The tensor's shape and dtype, as jax describes an array without values."""
    return jax.ShapeDtypeStruct(tuple(tensor.shape), convert_torch_dtype_to_jax(tensor.dtype))


def make_kernel_from_pallas(
    kernel: Callable[..., Any], output_shape_dtype_fn: Callable[..., Sequence[tuple[Sequence[int], torch.dtype]]]
) -> Callable[..., Any]:
    """A function of jax that calls Pallas kernels, as a function of xla tensors.

    Args:
      kernel: a function of arrays that gives an array, or a tuple or list of them. It is traced once for each shapes,
        dtypes and constants, without jax's 64-bit types unless an argument has one.
      output_shape_dtype_fn: of the same arguments, it gives the shape and torch dtype of each result, in a list.

    The function that comes out gives one tensor, or a tuple of several, without a gradient
    (``torch_xla.interop.jax_function`` is for functions that have one). It takes ``static_argnums`` and
    ``static_argnames`` as jax.jit does; all arguments that are no tensors are constants anyway. On the CPU kernels run
    in Pallas' interpreter, which knows the primitives of TPUs.

    A call raises TypeError for tensors that are not on xla, and for constants without a hash; ValueError where
    results are not as ``output_shape_dtype_fn`` says.
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
                f"make_kernel_from_pallas: {name} gives {format_tensors(*results)}, and output_shape_dtype_fn promised {wanted}"
            )
        return results[0] if len(results) == 1 else tuple(results)

    return called
