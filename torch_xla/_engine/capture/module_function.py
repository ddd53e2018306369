"""nn.Modules as pure functions of their parameters, buffers and arguments."""

from __future__ import annotations

import operator
import weakref
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import nn

from torch_xla._engine.capture import capture_modes
from torch_xla._engine.compat.torch_modules import direct_buffers, direct_children, direct_parameters

_training = operator.attrgetter("training")


class ModuleFunction:
    """A module as a function of its tensors, in order, and its arguments.

    ``named_parameters()`` takes longer than recording the module again does. So the dictionaries that hold the
    parameters and buffers are cached, and compared with the module's at each call. The module is referenced weakly; the
    caller keeps it alive.
    """

    def __init__(self, module: nn.Module) -> None:
        self._root, self.__name__ = weakref.ref(module), type(module).__name__
        self._version = 0
        self._refresh()

    @property
    def _module(self) -> nn.Module:
        module = self._root()
        assert module is not None, "the caller keeps the module alive"
        return module

    def _refresh(self) -> None:
        self._version += 1
        named = list(self._module.named_modules())
        modules = [module for _, module in named]
        self._within = modules[1:]
        self._prefixes = [f"{name}." if name else "" for name, _ in named]
        self._children = [direct_children(module) for module in modules]
        self._holders: list[dict[str, Any]] = [
            holder for module in modules for holder in (direct_parameters(module), direct_buffers(module))
        ]
        self._found = self._below()

    @property
    def _modules(self) -> list[nn.Module]:
        return [self._module, *self._within]

    def _below(self) -> list[nn.Module | None]:
        return list(chain.from_iterable(map(dict.values, self._children)))

    def tensors(self) -> list[torch.Tensor | None]:
        """Return the parameters and buffers, module by module; None for one that is registered as None."""
        if self._below() != self._found:
            self._refresh()
        return list(chain.from_iterable(map(dict.values, self._holders)))

    def state(self) -> Hashable:
        """Return a key of the module's state, besides its tensors, that the captured graph depends on."""
        return self._version, tuple(chain.from_iterable(self._holders)), tuple(map(_training, self._modules))

    def names(self) -> list[str]:
        """Return the qualified names of ``tensors``."""
        return [
            prefix + name
            for prefix, module in zip(self._prefixes, self._modules, strict=True)
            for holder in (direct_parameters(module), direct_buffers(module))
            for name in holder
        ]

    def kinds(self) -> list[tuple[type[nn.Module], str]]:
        """Return the type and extra_repr of each submodule."""
        return [(type(module), module.extra_repr()) for module in self._modules]

    def modes(self) -> tuple[bool, ...]:
        """Return for each submodule whether it is in training mode."""
        return tuple(map(_training, self._modules))

    def __call__(self, tensors: list[torch.Tensor | None], *args: Any, **kwargs: Any) -> Any:
        """Call the module, during a capture, with these tensors in place of its parameters.

        The tensors stay in place until the capture ends: activation checkpointing runs parts of the module again in
        backward. torch.func.functional_call would have restored the module's own tensors by then, and the gradient
        would be theirs.
        """
        capture_modes.current_capture().until_its_end(self._holding(tensors))
        return self._module(*args, **kwargs)

    @contextmanager
    def _holding(self, tensors: list[torch.Tensor | None]) -> Iterator[None]:
        given = iter(tensors)
        before = [dict(holder) for holder in self._holders]
        try:
            for holder in self._holders:
                holder.update(zip(list(holder), given, strict=False))
            yield
        finally:
            for holder, own in zip(self._holders, before, strict=True):
                holder.update(own)
