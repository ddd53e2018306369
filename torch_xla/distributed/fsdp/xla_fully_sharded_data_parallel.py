"""FSDP over replicas: each replica stores a shard of every parameter and gathers full parameters per module."""

from __future__ import annotations

import enum
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

import torch_xla
from torch_xla._engine import recorder
from torch_xla._engine.compat import torch_modules as compat
from torch_xla._engine.data_loading.batch_structure import map_tensors, tensors
from torch_xla.core import xla_model as xm
from torch_xla.distributed.fsdp._sharded_parameter import Shard, ShardGroup, gather, make_shard
from torch_xla.distributed.fsdp.utils import PLAIN_FORWARD, apply_xla_patch_to_nn_linear
from torch_xla.distributed.fsdp.wrap import recursive_wrap

__all__ = ["TrainingState", "XlaFullyShardedDataParallel", "apply_to_tensors", "collect_tensors"]


class TrainingState(enum.Enum):
    """The current phase of a wrapper."""

    IDLE = enum.auto()
    FORWARD = enum.auto()


class XlaFullyShardedDataParallel(nn.Module):
    """A module whose parameters and gradients are sharded over the replicas.

    The parameters are all-gathered before the module's forward and discarded after it. The backward pass gathers them
    again and leaves each replica its shard of the averaged gradients. Wrap layers first, then the model: a wrapped
    submodule gathers its parameters itself. Create the optimizer from ``parameters()`` after wrapping: it updates
    shards. Call its ``step()``, not xm.optimizer_step, which would average the gradients a second time.

    Args:
      module: on the CPU or on xla; it is modified. Parameters move to xla shard by shard.
      reshard_after_forward: False: the backward pass uses the parameters gathered by forward, which takes memory.
      flatten_parameters: use one shard of all parameters, concatenated, instead of one per parameter: fewer, larger
        transfers.
      execute_sharding_on_init: compute the shards immediately.
      optimization_barrier_in_forward: do not gather parameters before the module's inputs are computed.
      optimization_barrier_in_backward: the same for the backward pass and its gradients.
      sync_on_finalization: call ``torch_xla.sync()`` at the end of the outermost wrapper's backward pass.
      disable_reshard_on_root: the outermost wrapper retains its gathered parameters until the backward pass.
      compute_dtype: dtype of gathered parameters and of inputs; shards are not converted.
      buffer_dtype: dtype of buffers; default: compute_dtype.
      fp32_reduce_scatter: average gradients in float32.
      sharding_groups, sharding_rank, sharding_world_size: shard within groups of replicas, rather than over all.
      shard_param_on_dim_0: a shard is a range of rows of the parameter, rather than a range of elements.
      reduce_scatter_bucket_size_mb, coalesce_all_gather_ops, pin_layout_in_collective_ops: no effect: XLA combines and
        orders collectives itself.
      auto_wrap_policy, auto_wrapper_callable: select and wrap submodules; see
        [wrap policies][torch_xla.distributed.fsdp.wrap.size_based_auto_wrap_policy].
      param_init_fn: initializes the module if it has parameters on meta.

    Raises:
      RuntimeError: the module is already wrapped.
      ValueError: there are parameters on meta, but no param_init_fn.

    Examples:
      In each process of a job:

      >>> import torch
      >>> import torch_xla
      >>> from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel as FSDP
      >>> layers = [FSDP(torch.nn.Linear(8, 8)) for _ in range(2)]
      >>> model = FSDP(torch.nn.Sequential(*layers))
      >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
      >>> model(torch.ones(4, 8, device="xla")).sum().backward()
      >>> norm = model.clip_grad_norm_(1.0)
      >>> optimizer.step()  # not xm.optimizer_step
      >>> torch_xla.sync()
    """

    def __init__(
        self,
        module: nn.Module,
        reshard_after_forward: bool = True,
        flatten_parameters: bool = False,
        execute_sharding_on_init: bool = True,
        optimization_barrier_in_forward: bool = True,
        optimization_barrier_in_backward: bool = True,
        sync_on_finalization: bool = False,
        disable_reshard_on_root: bool = True,
        compute_dtype: torch.dtype | None = None,
        buffer_dtype: torch.dtype | None = None,
        fp32_reduce_scatter: bool = False,
        sharding_groups: list[list[int]] | None = None,
        sharding_rank: int | None = None,
        sharding_world_size: int | None = None,
        shard_param_on_dim_0: bool = False,
        pin_layout_in_collective_ops: bool = True,
        reduce_scatter_bucket_size_mb: int | None = 0,
        coalesce_all_gather_ops: bool = False,
        auto_wrap_policy: Callable[..., bool] | None = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        param_init_fn: Callable[[nn.Module], None] | None = None,
        _shard_size_multiple: int = 128,
        _use_xla_patched_linear: bool = True,
    ) -> None:
        options = {k: v for k, v in locals().items() if k not in ("self", "module", "__class__")}
        super().__init__()
        if isinstance(module, XlaFullyShardedDataParallel):
            raise RuntimeError("Cannot wrap a module that is already wrapped with FSDP. Stop trying!")
        if auto_wrap_policy is not None:
            wrapper = auto_wrapper_callable or XlaFullyShardedDataParallel
            inside = {k: v for k, v in options.items() if not k.startswith("auto_wrap")}
            recursive_wrap(module, auto_wrap_policy, wrapper, set(), set(), only_wrap_children=True, **inside)
        if any(p.is_meta for p in module.parameters()):
            if param_init_fn is None:
                raise ValueError("XlaFullyShardedDataParallel: parameters on meta require param_init_fn")
            param_init_fn(module)
        self.reshard_after_forward, self.disable_reshard_on_root = reshard_after_forward, disable_reshard_on_root
        self.compute_dtype, self.fp32_reduce_scatter = compute_dtype, fp32_reduce_scatter
        self._barriers = optimization_barrier_in_forward, optimization_barrier_in_backward
        self.sync_on_finalization = sync_on_finalization
        self._group = ShardGroup.of(sharding_groups, sharding_rank, sharding_world_size)
        self.gradient_divide_factors = 1.0, 1.0
        self.training_state = TrainingState.IDLE
        self._is_root: bool | None = None
        if _use_xla_patched_linear:
            apply_xla_patch_to_nn_linear(module)
        for child in self._inner_wrappers(module):
            child._is_root = False
        self._shards = _shard_parameters(
            module, self._group, flatten_parameters, shard_param_on_dim_0, _shard_size_multiple
        )
        self._fsdp_wrapped_module = module
        for shard in self._shards:
            self.register_parameter(shard.key, shard.parameter)
        _move_buffers(module, buffer_dtype or compute_dtype)
        plain = getattr(module, PLAIN_FORWARD, None)
        if plain is not None:  # a checkpointed module: its recomputation in backward must gather parameters, too
            object.__setattr__(module, PLAIN_FORWARD, functools.partial(self._gathered_run, plain))
        self._recomputed = plain is not None
        if execute_sharding_on_init:
            torch_xla.sync()

    @staticmethod
    def _inner_wrappers(module: nn.Module) -> list[XlaFullyShardedDataParallel]:
        return [m for m in module.modules() if isinstance(m, XlaFullyShardedDataParallel)]

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self._fsdp_wrapped_module

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("_fsdp_wrapped_module"), name)

    def __getitem__(self, key: int) -> nn.Module:
        inside: nn.Module = self._fsdp_wrapped_module[key]  # type: ignore[index]
        return inside

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module with gathered parameters.

        Args:
          args, kwargs: those of the module.
        """
        if self._is_root is None:  # the first wrapper that is called and has no outer wrapper
            self._is_root = True
        if self.compute_dtype is not None:
            args, kwargs = _cast((args, kwargs), self.compute_dtype)
        if self._recomputed:
            return self._fsdp_wrapped_module(*args, **kwargs)
        return self._gathered_run(self._fsdp_wrapped_module, *args, **kwargs)

    def _gathered_run(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, self.training_state = self.training_state, TrainingState.FORWARD
        try:
            given = [t for t in tensors((args, kwargs)) if t.device.type == "xla"] if self._barriers[0] else []
            for shard in self._shards:
                whole = self._gather(shard, given)
                for (layer, name), piece in zip(shard.places, shard.split(whole), strict=True):
                    layer_parameters(layer)[name] = piece
            keeps = not self.reshard_after_forward or (self._is_root and self.disable_reshard_on_root)
            if keeps or self._recomputed or not torch.is_grad_enabled():
                return function(*args, **kwargs)
            with torch.autograd.graph.saved_tensors_hooks(*self._without_saving_gathered()):
                return function(*args, **kwargs)
        finally:
            for shard in self._shards:
                for layer, name in shard.places:
                    layer_parameters(layer)[name] = None
            self.training_state = before

    def _gather(self, shard: Shard, after: Sequence[torch.Tensor]) -> torch.Tensor:
        pre, post = self.gradient_divide_factors
        scale = 1.0 / (self._group.size * pre * post)
        dtype = self.compute_dtype if shard.parameter.is_floating_point() else None
        return gather(shard, self._group, dtype, self.fp32_reduce_scatter, scale, after)

    def _without_saving_gathered(self) -> tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]:
        """Return saved-tensor hooks that save which parameter a gathered tensor is, and gather it again on unpack."""
        known: dict[int, tuple[Shard, int]] = {
            _number(piece): (shard, place)
            for shard in self._shards
            for place, piece in enumerate(layer_parameters(layer)[name] for layer, name in shard.places)
        }
        again: dict[int, list[torch.Tensor]] = {}

        def keep(t: torch.Tensor) -> Any:
            return known.get(_number(t), t) if t.device.type == "xla" else t

        def bring(kept: Any) -> torch.Tensor:
            if isinstance(kept, torch.Tensor):
                return kept
            shard, place = kept
            if id(shard) not in again:
                with torch.no_grad():
                    again[id(shard)] = list(shard.split(self._gather(shard, _latest_tensor(self._barriers[1]))))
            piece: torch.Tensor = again[id(shard)][place]
            return piece

        return keep, bring

    def set_gradient_divide_factors(self, pre: float, post: float, recursive: bool) -> None:
        """Divide gradients by both factors, besides the number of replicas; also in inner wrappers if ``recursive``.

        Args:
          pre: factor by which gradients are divided before the reduction.
          post: factor by which they are divided after it.
          recursive: whether to set the factors of inner wrappers, too.
        """
        for wrapper in self._inner_wrappers(self) if recursive else [self]:
            wrapper.gradient_divide_factors = pre, post

    @property
    def params_with_grad(self) -> list[nn.Parameter]:
        """Return the shards that have a gradient."""
        return [p for p in self.parameters() if p.grad is not None]

    @torch.no_grad()
    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, groups: list[list[int]] | None = None
    ) -> torch.Tensor:
        """Scale gradients so that their norm over all replicas' shards is at most ``max_norm``; return the norm.

        Args:
          max_norm: the largest norm.
          norm_type: the order of the norm, such as 2.0 or ``inf``.
          groups: replica groups among which the gradients are sharded; default: all replicas.
        """
        found = self.params_with_grad
        if not found:
            return torch.zeros((), device="xla")
        norms = torch.stack([torch.linalg.vector_norm(p.grad.float(), norm_type) for p in found if p.grad is not None])
        groups = self._group.groups if groups is None else groups
        if norm_type == math.inf:
            total = xm.all_reduce("max", norms.max(), groups=groups)
        else:
            total = xm.all_reduce("sum", norms.pow(norm_type).sum(), groups=groups).pow(1.0 / norm_type)
        scale = torch.clamp(max_norm / (total + 1e-6), max=1.0)
        for p in found:
            assert p.grad is not None
            p.grad.mul_(scale.to(p.grad.dtype))
        return total

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Do nothing: gradients of several backward passes accumulate in shards, the same sum in less memory."""
        yield

    def assert_state(self, state: TrainingState | list[TrainingState]) -> None:
        """Raise ValueError unless the wrapper is in this state, or in one of these states.

        Args:
          state: a TrainingState, or a list of them.
        """
        expected = [state] if isinstance(state, TrainingState) else state
        if self.training_state not in expected:
            raise ValueError(f"expected to be in states {expected} but current state is {self.training_state}")

    def get_original_names_and_sharded_parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Return (name in the wrapped module, shard), also of inner wrappers; a flat shard has several names."""
        out = []
        for prefix, wrapper in self._wrappers():
            for shard in wrapper._shards:
                out += [(_original_name(f"{prefix}{name}"), shard.parameter) for name in shard.names]
        return out

    def get_shard_metadata(self) -> dict[str, Any]:
        """Return the metadata of the shards for consolidating checkpoints; see state_dict_utils."""
        shares = {
            f"{prefix}{shard.key}": shard.metadata([_original_name(f"{prefix}{name}") for name in shard.names])
            for prefix, wrapper in self._wrappers()
            for shard in wrapper._shards
        }
        return {"shard_info": shares, "world_size": self._group.size, "rank": self._group.rank}

    def _wrappers(self) -> list[tuple[str, XlaFullyShardedDataParallel]]:
        return [
            (f"{name}." if name else "", m)
            for name, m in self.named_modules()
            if isinstance(m, XlaFullyShardedDataParallel)
        ]

    def extra_repr(self) -> str:
        """See nn.Module."""
        return f"rank={self._group.rank}, world_size={self._group.size}, compute_dtype={self.compute_dtype}"


def apply_to_tensors(fn: Callable[[torch.Tensor], Any], container: Any) -> Any:
    """Return ``container`` with ``fn(tensor)`` in place of each tensor in dicts, lists, tuples, sets and objects."""
    return map_tensors(container, fn)


def collect_tensors(container: Any) -> list[torch.Tensor]:
    """Return the tensors in nested dicts, lists, tuples, sets and objects, in order."""
    return list(tensors(container))


def _number(t: torch.Tensor) -> int:
    """Return the id of a tensor's memory, which a detached tensor shares."""
    return int(recorder.bindings().tensor_id(t))


def layer_parameters(layer: nn.Module) -> dict[str, Any]:
    """Return a layer's parameters by name; forward replaces them by gathered tensors in this dict."""
    return compat.direct_parameters(layer)


def _original_name(name: str) -> str:
    return ".".join(part for part in name.split(".") if part != "_fsdp_wrapped_module")


def _shard_parameters(module: nn.Module, group: ShardGroup, flatten: bool, rows: bool, multiple: int) -> list[Shard]:
    """Remove the parameters from the module and return this replica's shard of each."""
    places: dict[nn.Parameter, list[tuple[nn.Module, str, str]]] = {}
    for path, layer in module.named_modules():
        if isinstance(layer, XlaFullyShardedDataParallel):
            continue
        for name, p in compat.direct_parameters(layer).items():
            if p is not None:
                places.setdefault(p, []).append((layer, name, f"{path}.{name}" if path else name))
    kinds: dict[Any, list[nn.Parameter]] = {}
    for p in places:
        kinds.setdefault((p.dtype, p.requires_grad) if flatten else id(p), []).append(p)
    shards = []
    for number, found in enumerate(kinds.values()):
        shards.append(make_shard(number, found, places, group, rows and not flatten, multiple))
    for found_at in places.values():
        for layer, name, _ in found_at:
            layer_parameters(layer)[name] = None
    return shards


def _move_buffers(module: nn.Module, dtype: torch.dtype | None) -> None:
    for layer in module.modules():
        if isinstance(layer, XlaFullyShardedDataParallel):
            continue
        buffers = compat.direct_buffers(layer)
        for name, b in buffers.items():
            if b is not None:
                buffers[name] = b.to("xla", dtype if dtype is not None and b.is_floating_point() else b.dtype)


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return map_tensors(values, lambda t: t.to(dtype) if t.is_floating_point() else t)


def _latest_tensor(wanted: bool) -> list[torch.Tensor]:
    found = recorder.bindings().latest_values(recorder.bindings().current_device()) if wanted else None
    return [] if found is None else [found]
