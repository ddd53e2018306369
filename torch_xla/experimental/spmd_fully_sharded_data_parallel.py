"""FSDP with SPMD ("FSDPv2"): shard every parameter over the mesh axis ``fsdp``, in one script on one virtual device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import torch_xla.distributed.spmd as xs
from torch_xla._engine.compat import torch_modules
from torch_xla._engine.parallel import spmd
from torch_xla.distributed.fsdp.wrap import recursive_wrap

__all__ = ["SpmdFullyShardedDataParallel"]

_AXIS = "fsdp"


class SpmdFullyShardedDataParallel(nn.Module):
    """A module whose parameters are sharded over the mesh axis ``fsdp``, and its output along dimension 0.

    Each parameter is sharded along its longest dimension, which need not be a multiple of the axis size. Parameters
    that are already sharded, such as those of wrapped submodules, are unchanged. Parameters and buffers move to xla; no
    device ever holds a full sharded parameter. Those on meta stay on meta (see materialize). The caller shards the
    inputs: ``MpDeviceLoader(input_sharding=...)`` or mark_sharding. state_dict is that of the module, with the key
    prefix ``_orig_module.``.

    Args:
      module: the module to wrap.
      mesh: a mesh with an axis ``fsdp``; default: the global mesh.
      shard_output: ``f(output, mesh)`` shards the output. By default a tensor, the first element of a tuple, or the
        ``logits`` of an object is sharded along dimension 0; other outputs are not supported.
      auto_wrap_policy: selects submodules to wrap; see torch_xla.distributed.fsdp.wrap.
      auto_wrapper_callable: ``f(module, mesh=, shard_output=, extra_data_axis=)`` wraps these; default: this class.
      extra_data_axis: another mesh axis over which the output is sharded, outside ``fsdp``; parameters are replicated
        over it.

    Raises:
      ValueError: there is no mesh, or it lacks an axis.
      RuntimeError: the module is already wrapped.

    Examples:
      With ``CPU_NUM_DEVICES=4``:

      >>> import torch
      >>> import torch_xla.distributed.spmd as xs
      >>> import torch_xla.runtime as xr
      >>> from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
      >>> xr.use_spmd()
      >>> mesh = xs.get_1d_mesh("fsdp")
      >>> model = SpmdFullyShardedDataParallel(torch.nn.Linear(8, 16), mesh=mesh)
      >>> list(model.module.weight.local_shards[0].data.shape)
      [4, 8]
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        mesh: xs.Mesh | None = None,
        shard_output: Callable[[Any, xs.Mesh], None] | None = None,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
    ) -> None:
        super().__init__()
        mesh = mesh or xs.get_global_mesh()
        if mesh is None:
            raise ValueError("SpmdFullyShardedDataParallel: pass a mesh, or set the global one (spmd.set_global_mesh)")
        for axis in (_AXIS, extra_data_axis):
            if axis is not None and axis not in mesh.shape():
                raise ValueError(f"SpmdFullyShardedDataParallel: {mesh!r} has no axis named {axis!r}")
        if isinstance(module, SpmdFullyShardedDataParallel):
            raise RuntimeError("Cannot wrap a module that is already wrapped with FSDP. Stop trying!")
        if auto_wrap_policy is not None:
            options = {"mesh": mesh, "shard_output": shard_output, "extra_data_axis": extra_data_axis}
            wrapper = auto_wrapper_callable or SpmdFullyShardedDataParallel
            recursive_wrap(module, auto_wrap_policy, wrapper, set(), set(), only_wrap_children=True, **options)
        self._mesh, self._rows = mesh, _AXIS if extra_data_axis is None else (extra_data_axis, _AXIS)
        self._shard_output = shard_output or self._split_output
        self._orig_module = xs.apply_xla_patch_to_nn_linear(module)
        _to_xla(module, mesh)
        for p in module.parameters():
            if not p.is_meta and not _is_split(p):
                xs.mark_sharding(p, mesh, _spec(tuple(p.shape)))
        xs.apply_backward_optimization_barrier(module)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._orig_module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_orig_module"), name)

    def __getitem__(self, key: int) -> nn.Module:
        inside: nn.Module = self._orig_module[key]  # type: ignore[index]
        return inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module and shard its output.

        Args:
          args, kwargs: those of the module.

        Raises:
          RuntimeError: an output that needs ``shard_output``.
        """
        output = self._orig_module(*args, **kwargs)
        self._shard_output(output, self._mesh)
        return output

    def _split_output(self, output: Any, mesh: xs.Mesh) -> None:
        found = output[0] if isinstance(output, tuple) and output else getattr(output, "logits", output)
        if not isinstance(found, torch.Tensor):
            raise RuntimeError(
                f"SpmdFullyShardedDataParallel: an output of {type(output)} cannot be sharded; pass shard_output"
            )
        if found.dim() > 0:
            xs.mark_sharding(found, mesh, (self._rows, *(None,) * (found.dim() - 1)))


def _spec(shape: tuple[int, ...]) -> tuple[str | None, ...]:
    """Return the spec that shards the longest dimension (the first of several), for buffers and parameters alike."""
    longest = max(range(len(shape)), key=lambda dim: shape[dim], default=-1)
    return tuple(_AXIS if dim == longest else None for dim in range(len(shape)))


def _is_split(p: nn.Parameter) -> bool:
    found = xs.get_sharding(p)
    return found is not None and not found.is_fully_replicated


def _to_xla(module: nn.Module, mesh: xs.Mesh) -> None:
    """Move CPU parameters and buffers to xla; shard parameters during the transfer, replicate buffers."""
    for layer in module.modules():
        buffers = torch_modules.direct_buffers(layer)
        for name, b in buffers.items():
            if b is not None and b.device.type == "cpu":
                buffers[name] = b.to("xla")
    with spmd.upload_sharding(lambda shape: mesh.sharding(_spec(shape), len(shape))):
        for layer in module.modules():
            if not any(p.is_meta for p in layer.parameters(recurse=False)):
                torch_modules.apply_to_direct_tensors(layer, lambda t: t.to("xla"))
