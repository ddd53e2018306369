"""Pure functions, recorded once: from the second call on, a call is one node forward and one backward.

A pure function depends on its arguments only, and does nothing but give results. What its Python code does otherwise
happens at the first call only.
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
    """``fn``, a pure function of xla tensors, so that it is recorded once and then called as one node.

    Backward computes again what it needs of forward; where both are in one program, as they are unless
    ``torch_xla.sync()`` is called in between, XLA computes it once. It is recorded again for other structures, shapes,
    dtypes, constants (arguments that are no tensors), another need of gradients, autocast, default dtype or precision
    of products. Its gradient is the one that torch's autograd records; there is no second derivative. Random numbers
    are new in each call, and follow torch.manual_seed, but are not those of the function as it is.

    Constants are compared by value; functions, classes and modules by identity, modules also by their modes. An object
    of a class without ``__eq__`` is refused, as a call would not see that its attributes have changed.

    With ``add_rng_seed_argument`` a call takes one more, ``rng_seed=``, a Python integer or an int64 xla tensor of no
    dimensions: calls with equal ones draw equal numbers.

    A call raises RuntimeError where the function is seen not to be pure: it asks for a value, uses a tensor that is no
    argument, writes to an argument, keeps a tensor, or exchanges values with other replicas; TypeError where an
    argument cannot be a constant, a result is no structure of xla tensors, or the ``rng_seed`` is missing.
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
        # As unsigned 64 bits, whatever its sign.
        return torch.tensor((seed + 2**63) % 2**64 - 2**63, device="xla")
    raise TypeError(f"assume_pure: expected rng_seed=, an integer or an int64 xla tensor of no dimensions, got {seed}")


def assume_pure_torch(func: F, use_cache: bool = False) -> F:
    """As assume_pure; without ``use_cache`` the function's Python code runs at each call.

    What it closes over may then change. A call that records what another one has recorded is not lowered again, and is
    the same node.
    """
    pure = PureFunction("assume_pure_torch", func, is_cached=use_cache)

    @functools.wraps(func)
    def called(*args: Any, **kwargs: Any) -> Any:
        return pure(args, kwargs)

    return called  # type: ignore[return-value]


def j2t_autograd(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A jax function as a function of xla tensors with jax's gradient: ``torch_xla.interop.jax_function``."""

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        return autograd_function.call_with_gradient(fn, args, kwargs)

    return called


class PureModule(nn.Module):
    """A module whose forward pass is pure, recorded once.

    Parameters and buffers are arguments, so they may change between calls; a forward pass that writes to one is an
    error. Modes of the modules within (``train``, ``eval``) count as constants. Forward hooks run when it is recorded.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._call = ModuleFunction(module)
        self._pure = PureFunction("PureModule", self._call, hidden=1)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._pure((self._call.tensors(), *args), kwargs, self._call.state())
