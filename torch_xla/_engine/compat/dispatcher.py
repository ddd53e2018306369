"""Private dispatcher interface of torch: operator schemas, kernels, decompositions, dispatch modes."""

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
    "detection of operators for which torch has a kernel or a meta function",
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
    "decompositions of operators that have no lowering rule",
    "operators without a lowering rule run on the CPU",
)
_MAKE_FX = PrivateApi(
    "torch.fx.experimental.proxy_tensor",
    "make_fx",
    "tracing of decompositions",
    "compiling a graph raises if an operator has no lowering rule",
)
_FOREACH_COPY = PrivateApi(
    "torch",
    "_foreach_copy_",
    "writing the results of a collective in one operation",
    "the results are written one by one",
)
_REGISTER_MODULE = PrivateApi(
    "torch",
    "_register_device_module",
    "torch.xla, through which checkpointing and torch.random find the device's functions",
    "torch.xla is set as a plain attribute",
)


_MODE = PrivateApi(
    "torch.utils._python_dispatch",
    "TorchDispatchMode",
    "interception of each operator while a torch function is captured",
    "capturing a torch function raises",
)


class _MissingDispatchMode:
    """Substitute for torch's class if it is missing."""

    def __init__(self) -> None:
        _MODE.resolve()


if TYPE_CHECKING:
    from torch.utils._python_dispatch import TorchDispatchMode as DispatchMode
else:
    #: Base class of contexts whose ``__torch_dispatch__`` is called for each operator.
    DispatchMode = _MODE.resolve_or_none() or _MissingDispatchMode


def is_view(tensor: torch.Tensor) -> bool:
    """Whether autograd treats a tensor as a view of another one."""
    return bool(tensor._is_view())


def has_kernel(op: str, key: str) -> bool:
    """Whether torch has a kernel for an operator (``aten::add.Tensor``) and a dispatch key."""
    return bool(_HAS_KERNEL.resolve()(op, key))


def schema(op: Any) -> Any:
    """Return the schema of an operator of ``torch.ops``. Raises AttributeError if ``op`` is not an operator."""
    found = getattr(op, "_schema", None)
    if found is None:
        _SCHEMA.resolve()
        raise AttributeError(f"{op} is not an operator")
    return found


def schema_or_none(key: Any) -> Any:
    """Return the schema of a key of ``decompositions``; None for operators without one, such as control flow."""
    return getattr(key, "_schema", None)


def decompositions() -> Mapping[Any, Callable[..., Any]]:
    """Return torch's decompositions into core operators; empty, with a warning, if they are unavailable."""
    found = _DECOMPOSITIONS.resolve_or_none()
    if found is None:
        _DECOMPOSITIONS.warn_missing()
        return {}
    table: Mapping[Any, Callable[..., Any]] = found()
    return table


def make_fx(
    function: Callable[..., Any], rules: Mapping[Any, Callable[..., Any]]
) -> Callable[..., torch.fx.GraphModule]:
    """Return ``function`` as a tracer that returns an fx graph when called; operators in ``rules`` are decomposed."""
    traced: Callable[..., torch.fx.GraphModule] = _MAKE_FX.resolve()(function, decomposition_table=rules)
    return traced


def foreach_copy_(targets: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Copy each value to its target in one operation."""
    together = _FOREACH_COPY.resolve_or_none()
    if together is not None:
        together(list(targets), list(values))
        return
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)


def register_device_module(name: str, module: ModuleType) -> None:
    """Register ``module`` as ``torch.<name>``."""
    register = _REGISTER_MODULE.resolve_or_none()
    if register is not None:
        register(name, module)
        return
    setattr(torch, name, module)
    sys.modules[f"torch.{name}"] = module
