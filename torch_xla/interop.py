"""torch_xla and jax in one program: arrays shared without a copy, functions of each called from the other.

to_jax, from_jax               an xla tensor as a jax.Array and back: the same memory
jax_function                   a jax function on xla tensors, one node of the graph, with its gradient
torch_function_as_jax,         a torch function, or a module, as a jax function, with the gradient that torch's
module_as_jax                  autograd gives
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
    """The tensor's values as a jax.Array of its shape and dtype, in the same memory; runs what they need first.

    Later writes to the tensor do not show in the array. While the array is alive, its memory is not donated to a
    program of ours; arrays that jax makes of it without a copy (``addressable_data``, ``device_put`` to the same
    device) do not keep it so, the array itself must be kept. It must not be deleted, nor donated to a function of jax,
    as long as the tensor is used. Where the device stores a dtype as a narrower one (``XLA_USE_BF16``), and only there,
    it is a copy. TypeError for a tensor of another device.
    """
    return array_sharing.to_jax(tensor)


def from_jax(array: jax.Array) -> torch.Tensor:
    """An xla tensor with the array's values, shape and dtype, in the same memory.

    It is on the xla device of the array's own device. An array of another device or platform, or (without SPMD) one
    that lies on several, is copied to the current xla device. The array may be used on; it must not be deleted, nor
    donated to a function of jax, as long as the tensor is used. TypeError for what is no array, or of a dtype that
    torch lacks; ValueError for an array that was deleted, or has parts in other processes.
    """
    return array_sharing.from_jax(array)


def jax_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """A jax function as a function of xla tensors, with its gradient: jax.vjp's, as one more node of the graph.

    Arguments are as for ``torch_xla.core.xla_builder.call_jax``. Results of integer dtypes have no gradient, nor have
    arguments that require none. There is no second derivative: RuntimeError in a backward pass with
    ``create_graph=True``.
    """

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return autograd_function.call_with_gradient(function, args, kwargs)

    return called


def torch_function_as_jax(function: Callable[..., Any]) -> Callable[..., Any]:
    """A pure torch function of xla tensors as a function of jax arrays.

    It takes and gives structures that jax knows; leaves that are no arrays go to ``function`` as they are. The function
    is run at each call, or once for each trace of jax, on xla tensors without values. One that draws random numbers
    needs ``seed=``, an integer. RuntimeError where it is not pure: it asks for values, uses xla tensors that are no
    arguments, or writes to an argument.
    """
    return torch_to_jax.torch_function_as_jax(function)


def module_as_jax(module: torch.nn.Module) -> tuple[Callable[..., Any], dict[str, jax.Array]]:
    """``(function, parameters)``: ``function(parameters, *args, **kwargs)`` is the module's forward pass.

    ``parameters`` are those of a module on xla, and its buffers, by name, in the same memory (see to_jax).
    """
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}

    def forward(parameters: dict[str, torch.Tensor], *args: Any, **kwargs: Any) -> Any:
        return functional_call(module, parameters, args, kwargs)

    forward.__name__ = type(module).__name__
    return torch_to_jax.torch_function_as_jax(forward), {
        name: array_sharing.to_jax(tensor) for name, tensor in tensors.items()
    }
