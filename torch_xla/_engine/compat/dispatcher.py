"""Operators as torch's dispatcher knows them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_HAS_KERNEL = PrivateApi(
    "torch._C",
    "_dispatch_has_kernel_for_dispatch_key",
    "to leave alone operators that torch has a kernel or a meta function for",
    "torch_xla cannot be imported, and says why",
)
_SCHEMA = PrivateApi(
    "torch",
    "ops.aten.add.Tensor._schema",
    "the names, types and defaults of an operator's arguments",
    "torch_xla cannot be imported, and says why",
)
_DECOMPOSITIONS = PrivateApi(
    "torch._decomp",
    "core_aten_decompositions",
    "operators that have no rule, by others that have",
    "operators without a rule of their own run on the CPU",
)
_MAKE_FX = PrivateApi(
    "torch.fx.experimental.proxy_tensor",
    "make_fx",
    "to trace decompositions",
    "a graph with an operator that has no rule of its own cannot be compiled, and says why",
)
_FOREACH_COPY = PrivateApi(
    "torch",
    "_foreach_copy_",
    "to write the results of a collective",
    "they are written one by one",
)
_REGISTER_MODULE = PrivateApi(
    "torch",
    "_register_device_module",
    "torch.xla, by which checkpointing and torch.random find the device's functions",
    "torch.xla is set as a plain attribute",
)


_MODE = PrivateApi(
    "torch.utils._python_dispatch",
    "TorchDispatchMode",
    "to see each operator of a function of torch that becomes one of jax",
    "a function of torch as a function of jax raises, and says why",
)


class _MissingDispatchMode:
    """In the place of torch's class where that is missing."""

    def __init__(self) -> None:
        _MODE.resolve()


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
else:
    #: The class of contexts in which ``__torch_dispatch__`` is called for each operator.
    DispatchMode = _MODE.resolve_or_none() or _MissingDispatchMode


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd takes a tensor for a view of another one."""
    return bool(tensor._is_view())


def has_kernel(op: str, key: str) -> bool:
    """Whether torch has a kernel of its own for an operator (``aten::add.Tensor``) and dispatch key."""
    return bool(_HAS_KERNEL.resolve()(op, key))


def schema(op: Any) -> Any:
    """The schema of an operator of ``torch.ops``: arguments and returns. AttributeError for what is none."""
    found = getattr(op, "_schema", None)
    if found is None:
        _SCHEMA.resolve()
        raise AttributeError(f"{op} is not an operator")
    return found


def schema_or_none(key: Any) -> Any:
    """The schema of a key of ``decompositions``; None for operators that have none, which control flow has."""
    return getattr(key, "_schema", None)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """torch's decompositions into its core operators; none, with a warning, where they are not to be had."""
    found = _DECOMPOSITIONS.resolve_or_none()
    if found is None:
        _DECOMPOSITIONS.warn_missing()
        return {}
    table: Mapping[Any, Callable[..., Any]] = found()
    return table


def make_fx(
    function: Callable[..., Any], rules: Mapping[Any, Callable[..., Any]]
) -> Callable[..., torch.fx.GraphModule]:
    """``function``, which gives a graph of operators when it is called; those in ``rules`` are taken apart."""
    traced: Callable[..., torch.fx.GraphModule] = _MAKE_FX.resolve()(function, decomposition_table=rules)
    return traced


def foreach_copy_(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Sets each target to its value, in one operation."""
    together = _FOREACH_COPY.resolve_or_none()
    if together is not None:
        together(list(targets), list(values))
        return
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def register_device_module(name: str, module: ModuleType) -> None:
    """Makes ``module`` what ``torch.<name>`` is."""
    register = _REGISTER_MODULE.resolve_or_none()
    if register is not None:
        register(name, module)
        return
    setattr(torch, name, module)
    sys.modules[f"torch.{name}"] = module
