"""Use torch_xla and jax in one program: share arrays without a copy, call functions of one from the other.

to_jax, from_jax               convert an xla tensor to a jax.Array and back; both share memory
jax_function                   call a jax function on xla tensors as one node of the graph, with its gradient
torch_function_as_jax,         call a torch function or module as a jax function, with the gradient that torch's
module_as_jax                  autograd computes
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import torch
from torch.func import functional_call

from torch_xla._engine.capture import array_sharing, autograd_function, torch_to_jax

__all__ = ["from_jax", "jax_function", "module_as_jax", "to_jax", "torch_function_as_jax"]


def to_jax(tensor: torch.Tensor) -> jax.Array:
    """Convert an xla tensor to a jax.Array of its shape and dtype that shares its memory; runs the pending graph first.

    Later writes to the tensor do not change the array. While the array is alive, torch_xla does not donate its memory
    to a program. Arrays that jax derives from it without a copy (``addressable_data``, ``device_put`` to the same
    device) do not protect the memory: keep a reference to the array itself. Do not delete the array or donate it to a
    jax function while the tensor is in use. If the device stores the dtype in a narrower storage dtype
    (``XLA_USE_BF16``), the array is a copy.

    Args:
      tensor: an xla tensor of any shape and dtype.

    Raises:
      TypeError: the tensor is not on an xla device.

    Examples:
      >>> import torch
      >>> from torch_xla import interop
      >>> array = interop.to_jax(torch.arange(4.0, device="xla"))
      >>> (array + 1).tolist()
      [1.0, 2.0, 3.0, 4.0]
    """
    return array_sharing.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """Convert a jax.Array to an xla tensor of its shape and dtype that shares its memory.

    The tensor is on the xla device of the array's device. An array on another device or platform, or (without SPMD) an
    array sharded over several devices, is copied to the current xla device. The array stays usable; do not delete it or
    donate it to a jax function while the tensor is in use.

    Args:
      array: a jax.Array of any shape.

    Raises:
      TypeError: the argument is not an array, or torch does not support its dtype.
      ValueError: the array was deleted, or has shards in other processes.

    Examples:
      >>> import jax.numpy as jnp
      >>> from torch_xla import interop
      >>> tensor = interop.from_jax(jnp.arange(3.0))
      >>> tensor.device.type, (tensor * 2).tolist()
      ('xla', [0.0, 2.0, 4.0])
    """
    return array_sharing.from_jax(array)


def jax_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a jax function to a differentiable function of xla tensors; jax.vjp provides the gradient.

    Forward and backward are one node of the graph each. Arguments are as for
    [call_jax][torch_xla.core.xla_builder.call_jax]. Results of integer dtypes, and arguments that do not require a
    gradient, have no gradient. There is no second derivative.

    Args:
      function: a jax function; array arguments are xla tensors, other arguments are constants.

    Returns:
      A function of xla tensors with the same arguments.

    Raises:
      RuntimeError (by a backward pass): a second derivative is requested (``create_graph=True``).

    Examples:
      >>> import jax
      >>> import torch
      >>> from torch_xla import interop
      >>> softplus = interop.jax_function(jax.nn.softplus)
      >>> x = torch.zeros(2, device="xla", requires_grad=True)
      >>> softplus(x).sum().backward()
      >>> x.grad.tolist()
      [0.5, 0.5]
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return autograd_function.call_with_gradient(function, args, kwargs)

    return called


def torch_function_as_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a pure torch function of xla tensors to a function of jax arrays.

    Arguments and results are pytrees; leaves that are not arrays are passed to ``function`` unchanged. The function
    runs at each call, or once per jax trace, on abstract xla tensors (shape and dtype only). A function that draws
    random numbers requires ``seed=``, an integer.

    Args:
      function: a function of xla tensors without side effects.

    Returns:
      A function of jax arrays that jax.jit, jax.grad and jax.vmap can transform.

    Raises:
      RuntimeError: the function is not pure: it reads values, uses xla tensors that are not arguments, or writes to an
        argument.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import torch
      >>> from torch_xla import interop
      >>> loss = interop.torch_function_as_jax(lambda x: torch.sum(x**2))
      >>> jax.grad(loss)(jnp.arange(3.0)).tolist()
      [0.0, 2.0, 4.0]
    """
    return torch_to_jax.torch_function_as_jax(function)


def module_as_jax(module: torch.nn.Module) -> tuple[Callable[..., Any], dict[str, jax.Array]]:
    """Convert a module on xla to ``(function, parameters)``; ``function(parameters, *args, **kwargs)`` is forward.

    ``parameters`` holds the module's parameters and buffers by name and shares their memory (see
    [to_jax][torch_xla.interop.to_jax]).

    Args:
      module: a module whose parameters and buffers are on xla.

    Examples:
      >>> import jax
      >>> import jax.numpy as jnp
      >>> import torch
      >>> from torch_xla import interop
      >>> forward, parameters = interop.module_as_jax(torch.nn.Linear(3, 2).to("xla"))
      >>> sorted(parameters)
      ['bias', 'weight']
      >>> jax.jit(forward)(parameters, jnp.ones((4, 3))).shape
      (4, 2)
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def forward(parameters: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return functional_call(module, parameters, args, kwargs)

    forward.__name__ = type(module).__name__
    return torch_to_jax.torch_function_as_jax(forward), {
        name: array_sharing.to_jax(tensor) for name, tensor in tensors.items()
    }
