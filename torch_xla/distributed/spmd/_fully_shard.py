"""torch's FSDP2, ``torch.distributed.fsdp.fully_shard``, on an xla mesh: each parameter is sharded along a dimension.

XLA all-gathers parameters when a layer needs them and reduce-scatters gradients; torch's scheduling options have no
effect.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import nn

from torch_xla._engine.base.import_hooks import on_import
from torch_xla._engine.compat import distributed as compat
from torch_xla._engine.compat import dynamo, imported_names, torch_modules
from torch_xla.distributed.spmd import _fully_shard_processes, _process_fsdp_module
from torch_xla.distributed.spmd._mesh import get_1d_mesh, is_for_xla

#: Attributes: of a sharded parameter, and of a module with a mixed precision policy.
_DONE, _POLICY = "_torch_xla_fully_sharded", "_torch_xla_policy"

#: Methods of FSDPModule that schedule all-gathers and reduce-scatters, which XLA schedules here.
_WITHOUT_EFFECT = (
    "reshard", "reset_iter_state", "set_is_last_backward", "set_requires_gradient_sync", "set_requires_all_reduce",
    "set_reshard_after_forward", "set_reshard_after_backward", "set_modules_to_forward_prefetch",
    "set_modules_to_backward_prefetch", "set_unshard_in_backward",
)  # fmt: skip


def fully_shard(
    original: Callable[..., Any],
    module: Any,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int | None = None,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: Any = None,
    ignored_params: set[nn.Parameter] | None = None,
    **options: Any,
) -> Any:
    """torch's fully_shard; for an xla mesh, or with SPMD or xla process groups and no mesh, over xla devices.

    The module, or each of a list, moves to xla; no device ever holds a full parameter. Parameters are sharded along
    dimension 0, or the dimension that ``shard_placement_fn`` returns, over the mesh's last dimension. Dimensions need
    not be multiples of the mesh size. With SPMD parameters remain the same objects; with a device in each process they
    become DTensors (see _fully_shard_processes.py).

    Raises:
      ValueError: an option is not supported on xla (``offload_policy`` and others).
    """
    if mesh is None and not is_for_xla(None) and compat.has_default_group("xla"):
        mesh = _process_mesh()
    if not is_for_xla(mesh):
        given = {"mesh": mesh, "reshard_after_forward": reshard_after_forward, "ignored_params": ignored_params}
        given |= {"shard_placement_fn": shard_placement_fn} | ({} if mp_policy is None else {"mp_policy": mp_policy})
        return original(module, **given, **options)
    from torch.distributed.fsdp import MixedPrecisionPolicy, OffloadPolicy

    for name, value in options.items():
        if value is not None and type(value) is not OffloadPolicy:
            raise ValueError(f"fully_shard: {name}={value!r} is not supported for an xla mesh")
    modules = module if isinstance(module, list) else [module]
    for each in modules:
        if isinstance(each, (nn.ModuleList, nn.ModuleDict)):
            raise ValueError(f"fully_shard does not support containers that do not implement forward: {each}")
    ignored = set(ignored_params or ())
    if mesh is not None and compat.has_process_groups(mesh):
        policy = mp_policy or MixedPrecisionPolicy()
        for each in modules:
            _fully_shard_processes.shard_module(each, mesh, shard_placement_fn, ignored, reshard_after_forward, policy)
            _become_fsdp_module(each, _process_fsdp_module.fsdp_module_class())
        return module
    if mp_policy is not None:
        _check_reduce_dtype(modules, mp_policy)
    for each in modules:
        _shard(each, mesh or _whole_mesh(), shard_placement_fn, ignored)
        _become_fsdp_module(each, _fsdp_module())
        if mp_policy is not None:
            _apply_mixed_precision(each, mp_policy)
    return module


def _whole_mesh() -> Any:
    from torch.distributed.device_mesh import DeviceMesh

    return DeviceMesh("xla", torch.arange(get_1d_mesh().size()), mesh_dim_names=("fsdp",))


def _process_mesh() -> Any:
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh("xla", (torch.distributed.get_world_size(),))


def _shard(module: nn.Module, mesh: Any, choose: Any, ignored: set[nn.Parameter]) -> None:
    from torch.distributed.tensor.placement_types import Replicate, Shard

    from torch_xla.distributed.spmd.api import xla_distribute_tensor

    done: dict[nn.Parameter, nn.Parameter] = {}
    for layer in module.modules():
        for name, p in list(torch_modules.direct_parameters(layer).items()):
            if p is None or p in ignored or getattr(p, _DONE, False):
                continue
            if p not in done:
                chosen = (choose(p) if choose is not None else None) or Shard(0)
                placement = Replicate() if p.dim() == 0 else chosen
                placements = [*[Replicate()] * (mesh.ndim - 1), placement]
                done[p] = xla_distribute_tensor(p, mesh, placements)  # type: ignore[assignment]
                setattr(done[p], _DONE, True)
            torch_modules.direct_parameters(layer)[name] = done[p]
        buffers = torch_modules.direct_buffers(layer)
        for name, b in buffers.items():
            buffers[name] = b if b is None or b.is_meta else b.to("xla")


@functools.cache
def _fsdp_module() -> type:
    """Return the class that modules on xla get as a base class from fully_shard."""
    from torch.distributed.fsdp import FSDPModule, UnshardHandle

    class Handle(UnshardHandle):
        def wait(self) -> None:
            """Do nothing: XLA gathers parameters where they are read."""

    def unshard(self: Any, async_op: bool = False) -> UnshardHandle | None:
        """Return a handle with ``async_op``: there is nothing to do or to wait for."""
        return Handle() if async_op else None

    nothing = {name: _no_op_method(name) for name in _WITHOUT_EFFECT}
    return type("XlaFSDPModule", (FSDPModule,), {"unshard": unshard, "__new__": object.__new__, **nothing})


def _no_op_method(name: str) -> Callable[..., None]:
    def without_effect(self: Any, *args: Any, **kwargs: Any) -> None:
        """No-op: XLA decides when parameters are gathered and gradients are reduced."""

    without_effect.__name__ = name
    return without_effect


def _class(module: nn.Module) -> Any:
    return type(module)


def _become_fsdp_module(module: nn.Module, base: type) -> None:
    kind = _class(module)
    if not issubclass(kind, base):
        module.__class__ = _fsdp_class(kind, base)


@functools.cache
def _fsdp_class(kind: Any, base: Any) -> Any:
    return type(f"FSDP{kind.__name__}", (base, kind), {"__new__": object.__new__})


def _check_reduce_dtype(layers: list[nn.Module], policy: Any) -> None:
    """Warn, at the line that calls fully_shard, if reduce_dtype differs from the dtype in which XLA reduces."""
    own = {p.dtype for layer in layers for p in layer.parameters() if p.is_floating_point()}
    computed = own if policy.param_dtype is None else {policy.param_dtype}
    if policy.reduce_dtype is None or computed <= {policy.reduce_dtype}:
        return
    found = ", ".join(sorted(map(str, computed)))
    warnings.warn(
        f"fully_shard: reduce_dtype={policy.reduce_dtype} has no effect on xla: XLA reduces gradients in the dtype in "
        f"which it computes them, {found}. Omit reduce_dtype, or set param_dtype={policy.reduce_dtype}",
        UserWarning,
        stacklevel=4,
    )


def _apply_mixed_precision(module: nn.Module, policy: Any) -> None:
    """Cast parameters and inputs to the policy's dtypes in forward; gradients retain the parameters' dtypes."""

    def before(layer: nn.Module, args: Any, kwargs: Any) -> Any:
        if policy.param_dtype is None:
            return None
        kept = []
        for part in _same_policy(layer):
            parameters: dict[str, Any] = torch_modules.direct_parameters(part)
            for name, p in parameters.items():
                if p is not None and p.is_floating_point() and p.dtype != policy.param_dtype:
                    kept.append((part, name, p))
                    parameters[name] = p.to(policy.param_dtype)
        _kept.setdefault(id(layer), []).append(kept)
        return _cast((args, kwargs), policy.param_dtype) if policy.cast_forward_inputs else None

    def after(layer: nn.Module, args: Any, output: Any) -> Any:
        for part, name, p in _kept.get(id(layer), [[]]).pop() if _kept.get(id(layer)) else []:
            torch_modules.direct_parameters(part)[name] = p
        return output if policy.output_dtype is None else _cast(output, policy.output_dtype)

    setattr(module, _POLICY, policy)
    module.register_forward_pre_hook(before, with_kwargs=True)
    module.register_forward_hook(after, always_call=True)


_kept: dict[int, list[list[tuple[nn.Module, str, nn.Parameter]]]] = {}


def _same_policy(module: nn.Module) -> list[nn.Module]:
    """Return the module and its submodules, except submodules with their own policy."""
    parts = [module]
    for child in module.children():
        if not hasattr(child, _POLICY):
            parts += _same_policy(child)
    return parts


def _cast(values: Any, dtype: torch.dtype) -> Any:
    def one(value: torch.Tensor) -> torch.Tensor:
        return value.to(dtype) if value.is_floating_point() else value

    return dynamo.tree_map_tensors(one, values)


def patch_fully_shard() -> None:
    """Patch torch's fully_shard to support xla meshes; once."""
    for name in compat.modules_with_fully_shard():
        on_import(name, _wrap)
    imported_names.replace_imported_names()


def _wrap(module: ModuleType) -> None:
    original = module.fully_shard
    if getattr(original, "_torch_xla", False):
        return

    @functools.wraps(original)
    def wrapper(module: Any, **options: Any) -> Any:
        return fully_shard(original, module, **options)

    wrapper._torch_xla = True  # type: ignore[attr-defined]
    module.fully_shard = wrapper  # type: ignore[attr-defined]
    imported_names.add_replacement(original, wrapper)
