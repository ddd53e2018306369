"""Trace a pure function once and then record each call as one operation forward and one backward.

A pure function depends only on its arguments, and its only effect is to return results. Other effects of its Python
code happen at the first call only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import nn

from torch_xla._engine.capture import autograd_function
from torch_xla._engine.capture.module_function import ModuleFunction
from torch_xla._engine.capture.pure_function import PureFunction

__all__ = ["PureModule", "assume_pure", "assume_pure_torch", "j2t_autograd"]

F = TypeVar("F", bound=Callable[..., Any])


def assume_pure(fn: F, *, add_rng_seed_argument: bool = False) -> F:
    """Return ``fn``, a pure function of xla tensors, so that it is traced once and each call is one operation.

    Backward recomputes the values of forward that it needs; if both passes are in one program (no ``torch_xla.sync()``
    in between), XLA computes these values once. The function is traced again for other pytree structures, shapes,
    dtypes, constants (arguments that are not tensors), ``requires_grad`` flags, autocast settings, default dtype or
    matmul precision. The gradient is the one that torch's autograd computes; there is no second derivative. Each call
    draws new random numbers, which follow torch.manual_seed but differ from those of the untraced function.

    Constants are compared by value; functions, classes and modules by identity, modules also by their training modes.
    An object of a class without ``__eq__`` is rejected, because changes of its attributes would go unnoticed.

    Args:
      fn: the function.
      add_rng_seed_argument: a call takes the additional argument ``rng_seed=``, a Python integer or a 0-dimensional
        int64 xla tensor; calls with equal seeds draw equal numbers.

    Raises:
      RuntimeError (by a call): the function is not pure: it reads a value, uses a tensor that is not an argument,
        writes to an argument, stores a tensor, or issues a collective.
      TypeError (by a call): an argument cannot be a constant, a result is not a pytree of xla tensors, or ``rng_seed``
        is missing.

    Examples:
      >>> import torch
      >>> from torch_xla.experimental.assume_pure import assume_pure
      >>> @assume_pure
      ... def gelu_linear(x, weight):
      ...     print("traced")
      ...     return torch.nn.functional.gelu(x @ weight)
      >>> weight = torch.ones(4, 2, device="xla", requires_grad=True)
      >>> for _ in range(3):
      ...     y = gelu_linear(torch.ones(3, 4, device="xla"), weight)
      traced
    """
    pure = PureFunction("assume_pure", fn)

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        if add_rng_seed_argument:
            return pure(args, kwargs, start=_start(kwargs.pop("rng_seed", None)))
        return pure(args, kwargs)

    return called  # type: ignore[return-value]


def _start(seed: Any) -> torch.Tensor:
    if isinstance(seed, torch.Tensor):
        if seed.device.type == "xla" and seed.dtype == torch.int64 and seed.dim() == 0:
            return seed
        seed = f"{seed.dtype}{list(seed.shape)} on {seed.device}"
    elif isinstance(seed, int) and not isinstance(seed, bool):
        # Interpreted as an unsigned 64-bit integer.
        return torch.tensor((seed + 2**63) % 2**64 - 2**63, device="xla")
    raise TypeError(f"assume_pure: expected rng_seed=, an integer or a 0-dimensional int64 xla tensor, got {seed}")


def assume_pure_torch(func: F, use_cache: bool = False) -> F:
    """Equivalent to assume_pure; without ``use_cache`` the function's Python code runs at each call.

    The values that the function closes over may then change. A call that records the same operations as an earlier one
    is not lowered again and uses the same operation.

    Args:
      func: the function.
      use_cache: trace the function once per structure, shapes, dtypes and constants of its arguments, as assume_pure.
    """
    pure = PureFunction("assume_pure_torch", func, is_cached=use_cache)

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        return pure(args, kwargs)

    return called  # type: ignore[return-value]


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """Convert a jax function to a differentiable function of xla tensors; see [torch_xla.interop.jax_function][].

    Args:
      fn: the jax function.
    """

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        return autograd_function.call_with_gradient(fn, args, kwargs)

    return called


class PureModule(nn.Module):
    """A module whose forward pass is pure and is traced once.

    Parameters and buffers are arguments, so they may change between calls; a forward pass that writes to one raises an
    error. Training modes of submodules (``train``, ``eval``) are constants. Forward hooks run during tracing.

    Args:
      module: a module on xla.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._call = ModuleFunction(module)
        self._pure = PureFunction("PureModule", self._call, hidden=1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._pure((self._call.tensors(), *args), kwargs, self._call.state())
