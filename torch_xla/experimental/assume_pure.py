"""Pure functions, recorded once: from the second call on, a call is one node forward and one backward.

A pure function depends on its arguments only, and does nothing but give results. What its Python code does otherwise
happens at the first call only.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Hashable
from itertools import chain
from typing import Any, TypeVar

import torch
from torch import nn
from torch.func import functional_call

from torch_xla._engine.base.compat.modules import own_buffers, own_children, own_parameters
from torch_xla._engine.interop.pure import Pure

__all__ = ["PureModule", "assume_pure", "assume_pure_torch"]

F = TypeVar("F", bound=Callable[..., Any])

_training = operator.attrgetter("training")


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
        self._call = _Call(module)
        self._pure = Pure("PureModule", self._call)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._pure((self._call.tensors(), *args), kwargs, self._call.state())


class _Call:
    """A module as a function of its tensors, in order, and its arguments.

    Asking a module for its named parameters takes longer than recording it anew does; so what holds them is kept, and
    compared with what there is at each call.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module, self.__name__ = module, type(module).__name__
        self._version = 0
        self._look()

    def _look(self) -> None:
        self._version += 1
        named = list(self._module.named_modules())
        self._modules = [module for _, module in named]
        self._prefixes = [f"{name}." if name else "" for name, _ in named]
        self._children = [own_children(module) for module in self._modules]
        self._holders: list[dict[str, Any]] = [
            holder for module in self._modules for holder in (own_parameters(module), own_buffers(module))
        ]
        self._found = self._below()

    def _below(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def tensors(self) -> list[torch.Tensor | None]:
        """The parameters and buffers, module by module; None where there could be one."""
        if self._below() != self._found:
            self._look()
        return list(chain.from_iterable(map(dict.values, self._holders)))

    def state(self) -> Hashable:
        """What of the module besides its tensors decides what it records."""
        return self._version, tuple(chain.from_iterable(self._holders)), tuple(map(_training, self._modules))

    def __call__(self, tensors: list[torch.Tensor | None], *args: Any, **kwargs: Any) -> Any:
        names = [
            prefix + name
            for prefix, module in zip(self._prefixes, self._modules, strict=True)
            for holder in (own_parameters(module), own_buffers(module))
            for name in holder
        ]
        given = {name: tensor for name, tensor in zip(names, tensors, strict=True) if tensor is not None}
        return functional_call(self._module, given, args, kwargs)
