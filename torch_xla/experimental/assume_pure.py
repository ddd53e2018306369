"""Pure functions, recorded once: from the second call on, a call is one node forward and one backward.

A pure function depends on its arguments only, and does nothing but give results. What its Python code does otherwise
happens at the first call only.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

from torch import nn

from torch_xla._engine.interop.modules import ModuleCall
from torch_xla._engine.interop.pure import Pure

__all__ = ["PureModule", "assume_pure", "assume_pure_torch"]

F = TypeVar("F", bound=Callable[..., Any])


def assume_pure(function: F) -> F:
    """``function``, a pure one of xla tensors, so that it is recorded once and then called as one node.

    Backward computes again what it needs of forward; where both are in one program, as they are unless
    ``torch_xla.sync()`` is called in between, XLA computes it once. It is recorded again for other structures, shapes,
    dtypes, constants (arguments that are no tensors), another need of gradients, autocast, default dtype or precision
    of products. Its gradient is the one that torch's autograd records; there is no second derivative. Random numbers
    are new in each call, and follow torch.manual_seed, but are not those of the function as it is.

    A call raises RuntimeError where the function is seen not to be pure: it asks for a value, uses a tensor that is no
    argument, writes to an argument, keeps a tensor, or exchanges values with other replicas; TypeError where a
    result is no structure of xla tensors.
    """
    pure = Pure("assume_pure", function)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> Any:
        return pure(args, kwargs)

    return called  # type: ignore[return-value]


def assume_pure_torch(func: F, use_cache: bool = False) -> F:
    """Upstream's other name of ``assume_pure``; what is recorded is always kept, whatever ``use_cache`` says."""
    return assume_pure(func)


class PureModule(nn.Module):
    """A module whose forward pass is pure, recorded once.

    Parameters and buffers are arguments, so they may change between calls; a forward pass that writes to one is an
    error. Modes of the modules within (``train``, ``eval``) count as constants. Forward hooks run when it is recorded.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        self._call = ModuleCall(module)
        self._pure = Pure("PureModule", self._call)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._pure((self._call.tensors(), *args), kwargs, self._call.state())
