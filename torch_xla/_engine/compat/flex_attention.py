"""Private names of torch's flex_attention."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch

from torch_xla._engine.compat.private_api import PrivateApi

_PURPOSE = "flex_attention on xla tensors"
_RAISES = "flex_attention raises for xla tensors"
_OP = PrivateApi("torch._higher_order_ops.flex_attention", "flex_attention", _PURPOSE, _RAISES)
_BACKWARD = PrivateApi(
    "torch._higher_order_ops.flex_attention", "flex_attention_backward", _PURPOSE, "torch.compile runs it op by op"
)
_VALIDATE = PrivateApi("torch.nn.attention.flex_attention", "_validate_device", _PURPOSE, _RAISES)
_PUBLIC = PrivateApi(
    "torch.nn.attention.flex_attention", "flex_attention", "flex_attention on xla bypasses dynamo", "each call is slow"
)
_DEBUG = PrivateApi(
    "torch.nn.attention.flex_attention",
    "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    "flex_attention on xla bypasses dynamo",
    "each call is slow",
)


def register_kernels(
    kernel: Callable[..., Any], backward_kernel: Callable[..., Any], autocast_kernel: Callable[..., Any]
) -> None:
    """Set the operators' xla kernels: ``kernel(original, *args)``. Warns if an operator is missing."""
    for operator, own in ((_OP, kernel), (_BACKWARD, backward_kernel)):
        found = operator.resolve_or_none()
        if found is None:
            operator.warn_missing()
            continue
        key = torch._C.DispatchKey
        originals = [found.py_kernels.get(k) for k in (key.Autograd, key.CompositeExplicitAutograd)]
        for at, original in zip((key.AutogradXLA, key.XLA), originals, strict=True):
            found.py_impl(at)(functools.partial(own, original))
        if operator is _OP:
            found.py_impl(_autocast_key())(functools.partial(autocast_kernel, found))


def exclude_autocast() -> AbstractContextManager[Any]:
    """Return a context below autocast."""
    keys = torch._C.DispatchKeySet(_autocast_key())
    return torch._C._ExcludeDispatchKeyGuard(keys)


def wrap_functions(validate_device: Callable[..., Any], public: Callable[..., Any]) -> None:
    """Wrap the check of the device and ``flex_attention``; call it after torch.nn.attention.flex_attention's import."""
    _VALIDATE.wrap(validate_device)
    _PUBLIC.wrap(public)


@functools.cache
def without_dynamo(original: Any) -> Any:
    """Return ``flex_attention`` as a function that calls its operator directly, and does not warn that it does.

    The copy reads its module's switch for debugging as on; the module itself is unchanged.
    """
    module = importlib.import_module(_DEBUG.module)
    if not isinstance(original, FunctionType) or not hasattr(module, _DEBUG.name):
        return original
    copy = FunctionType(
        original.__code__, {**vars(module), _DEBUG.name: True}, original.__name__, original.__defaults__,
        original.__closure__,
    )  # fmt: skip
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


def _autocast_key() -> Any:
    return torch._C._dispatch_key_parse("AutocastXLA")  # DispatchKey does not list it
