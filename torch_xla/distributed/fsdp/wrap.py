"""Auto-wrap policies, which select the submodules of a model to wrap, and their application.

A policy is ``policy(module=, recurse=, unwrapped_params=) -> bool``. With ``recurse=True`` it returns whether to visit
the module's children, with ``recurse=False`` whether to wrap the module. ``unwrapped_params`` is the number of its
parameters outside wrapped children.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import nn

__all__ = [
    "always_wrap_policy", "enable_wrap", "lambda_auto_wrap_policy", "recursive_wrap", "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy", "wrap",
]  # fmt: skip

Policy = Callable[..., bool]


def always_wrap_policy(*args: Any, **kwargs: Any) -> bool:
    """Wrap every module.

    Args:
      args, kwargs: ignored.
    """
    return True


def lambda_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, lambda_fn: Callable[[nn.Module], bool]
) -> bool:
    """Wrap the modules for which ``lambda_fn(module)`` is true; set it with functools.partial.

    Args:
      module, recurse, unwrapped_params: passed by the wrapper.
      lambda_fn: the predicate.
    """
    return True if recurse else lambda_fn(module)


def transformer_auto_wrap_policy(
    module: nn.Module, recurse: bool, unwrapped_params: int, transformer_layer_cls: set[type[nn.Module]]
) -> bool:
    """Wrap the modules of the given classes; set them with functools.partial.

    Args:
      module, recurse, unwrapped_params: passed by the wrapper.
      transformer_layer_cls: the classes, such as the layer class of a transformer.

    Examples:
      >>> import functools
      >>> import torch
      >>> from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
      >>> from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
      >>> policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={torch.nn.Linear})
      >>> model = FSDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), auto_wrap_policy=policy)
      >>> [type(layer).__name__ for layer in model.module]
      ['XlaFullyShardedDataParallel', 'ReLU']
    """
    return True if recurse else isinstance(module, tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(
    module: nn.Module,
    recurse: bool,
    unwrapped_params: int,
    min_num_params: int = int(1e8),
    force_leaf_modules: set[type[nn.Module]] | None = None,
    exclude_wrap_modules: set[type[nn.Module]] | None = None,
) -> bool:
    """Wrap a module as soon as it has ``min_num_params`` parameters outside wrapped modules.

    Args:
      module, recurse, unwrapped_params: passed by the wrapper.
      min_num_params: number of parameters, in elements.
      force_leaf_modules: classes whose submodules are not visited; default: nn.MultiheadAttention.
      exclude_wrap_modules: classes that are not wrapped; default: nn.ModuleList, nn.ModuleDict.
    """
    leaves = size_based_auto_wrap_policy.FORCE_LEAF_MODULES if force_leaf_modules is None else force_leaf_modules  # type: ignore[attr-defined]
    never = size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES if exclude_wrap_modules is None else exclude_wrap_modules  # type: ignore[attr-defined]
    large = unwrapped_params >= min_num_params
    return large and not isinstance(module, tuple(leaves) if recurse else tuple(never))


size_based_auto_wrap_policy.EXCLUDE_WRAP_MODULES = {nn.ModuleList, nn.ModuleDict}  # type: ignore[attr-defined]
size_based_auto_wrap_policy.FORCE_LEAF_MODULES = {nn.MultiheadAttention}  # type: ignore[attr-defined]


def recursive_wrap(
    module: nn.Module,
    auto_wrap_policy: Policy,
    wrapper_cls: Callable[..., nn.Module],
    ignored_modules: set[nn.Module],
    ignored_params: set[nn.Parameter],
    only_wrap_children: bool = False,
    **kwargs: Any,
) -> tuple[nn.Module, int]:
    """Wrap the submodules that the policy selects, innermost first.

    A wrapper is ``wrapper_cls(module, **kwargs)``; if that is a class, its existing instances are not wrapped again. A
    module that occurs twice has one wrapper. Ignored modules are not wrapped, and ignored parameters are not counted.

    Args:
      module: the module; its submodules are replaced in place.
      auto_wrap_policy: called with ``module``, ``recurse`` and ``unwrapped_params``; returns whether to wrap it, or to
        visit its children.
      wrapper_cls: class of the wrappers.
      ignored_modules: modules that are not wrapped.
      ignored_params: parameters that do not count towards a policy's size.
      only_wrap_children: do not wrap ``module`` itself.
      kwargs: further arguments of ``wrapper_cls``.

    Returns:
      (the module or its wrapper, the number of wrapped parameters).
    """
    wrapping = _Wrapping(auto_wrap_policy, wrapper_cls, ignored_modules, ignored_params, kwargs)
    return wrapping.run(module, not only_wrap_children)


@dataclass
class _Wrapping:
    policy: Policy
    wrapper: Callable[..., nn.Module]
    ignored_modules: set[nn.Module]
    ignored_params: set[nn.Parameter]
    options: dict[str, Any]
    known: dict[nn.Module, tuple[nn.Module, int]] = field(default_factory=dict)

    def run(self, module: nn.Module, root: bool = True) -> tuple[nn.Module, int]:
        count = sum(p.numel() for p in module.parameters() if p not in self.ignored_params)
        if module in self.ignored_modules or isinstance(self.wrapper, type) and isinstance(module, self.wrapper):
            return module, count
        if module not in self.known:
            self.known[module] = self._run(module, count, root)
        return self.known[module]

    def _run(self, module: nn.Module, count: int, root: bool) -> tuple[nn.Module, int]:
        inside = 0
        if self.policy(module=module, recurse=True, unwrapped_params=count):
            for name, child in list(module._modules.items()):
                if child is not None:
                    module._modules[name], done = self.run(child)
                    inside += done
        if root and self.policy(module=module, recurse=False, unwrapped_params=count - inside):
            return self.wrapper(module, **self.options), count
        return module, inside


#: The wrapper and its options inside enable_wrap().
_enabled: list[tuple[Callable[..., nn.Module], dict[str, Any]]] = []


@contextmanager
def enable_wrap(*, wrapper_cls: Callable[..., nn.Module], **wrapper_kwargs: Any) -> Iterator[None]:
    """Make ``wrap(module)`` return ``wrapper_cls(module, **wrapper_kwargs)`` in the block.

    Args:
      wrapper_cls: the wrapper, such as XlaFullyShardedDataParallel.
      wrapper_kwargs: its keyword arguments.
    """
    _enabled.append((wrapper_cls, wrapper_kwargs))
    try:
        yield
    finally:
        _enabled.pop()


def wrap(module: nn.Module, **wrap_overrides: Any) -> nn.Module:
    """Return the module wrapped as enable_wrap specifies; outside enable_wrap the module itself.

    Args:
      module: the module.
      wrap_overrides: arguments of the wrapper that replace those of enable_wrap.
    """
    if not _enabled:
        return module
    wrapper, options = _enabled[-1]
    return wrapper(module, **(options | wrap_overrides))
