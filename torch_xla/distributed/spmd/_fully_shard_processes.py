"""torch's FSDP2, ``torch.distributed.fsdp.fully_shard``, on an xla mesh with one device in each process.

Parameters are DTensors, sharded over the mesh. Before a module's forward its parameters are replaced by all-gathered
tensors, whose gradients are reduce-scattered; forward saves no gathered parameter for backward, which gathers it again.
All of this is recorded: XLA schedules the collectives of a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla._engine import recorder
from torch_xla._engine.base import dynamo_hooks
from torch_xla._engine.compat import dynamo, torch_modules
from torch_xla.distributed.spmd._process_shards import (
    Layout,
    Reduction,
    gather_parameter,
    mesh_axis,
    shard_parameter,
)

#: The attribute of a module that holds its ShardedModule.
STATE = "_torch_xla_sharded_module"

Slot = tuple[nn.Module, str]


class ShardedModule:
    """The parameters that one call of fully_shard shards; lives as long as its module.

    sharded (DTensors are in the module) -> gathered, by forward, backward or unshard() -> sharded, at the end of
    forward or backward or by reshard()
    """

    def __init__(self, module: nn.Module, reshard_after_forward: bool | None, policy: Any, group_size: int) -> None:
        self.module, self.reshard_after_forward, self.policy = module, reshard_after_forward, policy
        self.is_root: bool | None = None
        self.divide_factor = float(group_size)
        self._places: list[tuple[list[Slot], Layout]] = []
        self._sharded: list[nn.Parameter] = []  # what reshard() puts back; empty while sharded
        self._in_backward = False
        self._contexts: list[Any] = []
        module.register_forward_pre_hook(self.before_forward, prepend=True, with_kwargs=True)
        module.register_forward_hook(self.after_forward, always_call=True)
        module.register_state_dict_pre_hook(lambda *_: self.reshard())
        module.register_load_state_dict_pre_hook(lambda *_: self.reshard())

    def add_parameter(self, slots: list[Slot], sharded: nn.Parameter, layout: Layout) -> None:
        """Put a sharded parameter into its slots; a shared parameter has several."""
        self._places.append((slots, layout))
        _put(slots, sharded)

    def parameters(self) -> list[Any]:
        """Return what the slots hold now."""
        return [_get(slots) for slots, _ in self._places]

    # Gathering.

    def gather(self, after: list[torch.Tensor]) -> None:
        """Replace the sharded parameters by gathered ones, ordered after the tensors ``after``."""
        if self._sharded:
            return
        policy = self.policy
        reduction = Reduction(policy.param_dtype, policy.reduce_dtype, 1.0 / self.divide_factor)
        self._sharded = self.parameters()
        for (slots, layout), sharded in zip(self._places, self._sharded, strict=True):
            _put(slots, gather_parameter(sharded, layout, reduction, after))

    def reshard(self) -> None:
        """Put the sharded parameters back."""
        for (slots, _), sharded in zip(self._places, self._sharded, strict=False):
            _put(slots, sharded)
        self._sharded = []

    # Forward.

    def before_forward(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Gather the parameters; move the inputs of the outermost module to xla."""
        if self.is_root is None:
            self._find_root()
        if self.is_root:
            args, kwargs = dynamo.tree_map_tensors(lambda t: t.to("xla"), (args, kwargs))
        policy = self.policy
        if policy.param_dtype is not None and policy.cast_forward_inputs:
            args, kwargs = _cast((args, kwargs), policy.param_dtype)
        self.gather([t for t in dynamo.tree_leaves((args, kwargs)) if _is_xla(t)])
        self._contexts.append(self._save_shards_only())
        return args, kwargs

    def after_forward(self, module: nn.Module, args: Any, output: Any) -> Any:
        """Put the sharded parameters back, and gather them again before backward uses the outputs."""
        if self._contexts:  # not if before_forward has raised
            context = self._contexts.pop()
            if context is not None:
                context.__exit__(None, None, None)
        if self._in_backward:  # a recomputation
            return self._cast_output(output)
        self.reshard()
        output = self._cast_output(output)
        results = [t for t in dynamo.tree_leaves(output) if isinstance(t, torch.Tensor) and t.requires_grad]
        if results and torch.is_grad_enabled():
            torch.autograd.graph.register_multi_grad_hook(results, lambda _: self._begin_backward(), mode="any")
        return output

    def _find_root(self) -> None:
        for module in self.module.modules():
            inner = getattr(module, STATE, None)
            if inner is not None:
                inner.is_root = inner is self

    def _cast_output(self, output: Any) -> Any:
        return output if self.policy.output_dtype is None else _cast(output, self.policy.output_dtype)

    def _save_shards_only(self) -> Any:
        """Enter hooks that save for backward which parameter a gathered tensor is, instead of the tensor."""
        reshard = not self.is_root if self.reshard_after_forward is None else self.reshard_after_forward
        if not reshard or not torch.is_grad_enabled() or self._in_backward or _is_checkpointing():
            return None
        known = {_number(gathered): index for index, gathered in enumerate(self.parameters())}

        def save(t: torch.Tensor) -> Any:
            return known.get(_number(t), t) if _is_xla(t) else t

        def load(saved: Any) -> torch.Tensor:
            if isinstance(saved, torch.Tensor):
                return saved
            self._begin_backward()
            found: torch.Tensor = self.parameters()[saved]
            return found.detach()

        setattr(save, STATE, True)
        context = torch.autograd.graph.saved_tensors_hooks(save, load)
        context.__enter__()
        return context

    # Backward.

    def _begin_backward(self) -> None:
        """Gather the parameters until the end of this backward: for saved tensors, and for recomputed layers."""
        if not self._in_backward:
            self._in_backward = True
            torch_modules.queue_backward_callback(self._end_backward)
        if not self._sharded:
            latest = recorder.bindings().latest_values(recorder.bindings().current_device())
            with torch.enable_grad():  # a recomputed layer saves what its first forward has saved
                self.gather([] if latest is None else [latest])

    def _end_backward(self) -> None:
        self._in_backward = False
        self.reshard()


def _is_checkpointing() -> bool:
    """Whether hooks of others decide what is saved, which compute it again, or move it."""
    hooks = torch_modules.top_saved_tensor_hooks()
    return hooks is not None and not hasattr(hooks[0], STATE)


def _get(slots: list[Slot]) -> Any:
    layer, name = slots[0]
    return torch_modules.direct_parameters(layer)[name]


def _put(slots: list[Slot], value: Any) -> None:
    for layer, name in slots:
        torch_modules.direct_parameters(layer)[name] = value


def _is_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _number(t: torch.Tensor) -> int:
    """Return the id of a tensor's memory, which a detached tensor shares; 0 for a tensor that wraps others."""
    return int(recorder.bindings().tensor_id(t)) if type(t) in (torch.Tensor, nn.Parameter) else 0


def _cast(values: Any, dtype: torch.dtype) -> Any:
    return dynamo.tree_map_tensors(lambda t: t.to(dtype) if t.is_floating_point() else t, values)


# Sharding of a module.


def shard_module(
    module: nn.Module, mesh: Any, choose: Callable[[nn.Parameter], Any] | None, ignored: set[nn.Parameter],
    reshard: Any, policy: Any,
) -> None:  # fmt: skip
    """Shard the parameters of a module that no inner call of fully_shard has sharded.

    Raises:
      ValueError: the mesh has more than two dimensions, or a parameter has none.
      NotImplementedError: a parameter is a DTensor already, or ``reshard_after_forward`` is a number of devices.
    """
    if mesh.ndim > 2:
        raise ValueError(f"fully_shard expects a 1D or 2D DeviceMesh but got {mesh}")
    if reshard is not None and not isinstance(reshard, bool):
        raise NotImplementedError(f"fully_shard: reshard_after_forward={reshard} is not supported on xla; pass a bool")
    state = ShardedModule(module, reshard, policy, mesh.size())
    shard, replicate = mesh_axis(mesh, mesh.ndim - 1), mesh_axis(mesh, 0) if mesh.ndim == 2 else None
    for parameter, slots in _own_parameters(module, ignored).items():
        chosen = None if choose is None else choose(parameter)
        dim = 0 if chosen is None else chosen.dim % parameter.dim()
        layout = Layout(parameter.shape, dim, shard, replicate)
        state.add_parameter(slots, shard_parameter(parameter, mesh, layout), layout)
    for layer in module.modules():
        buffers = torch_modules.direct_buffers(layer)
        for name, buffer in buffers.items():
            buffers[name] = buffer if buffer is None or buffer.is_meta else buffer.to("xla")
    object.__setattr__(module, STATE, state)


def _own_parameters(module: nn.Module, ignored: set[nn.Parameter]) -> dict[nn.Parameter, list[Slot]]:
    from torch.distributed.tensor import DTensor

    found: dict[nn.Parameter, list[Slot]] = {}
    inner = (getattr(m, STATE) for m in module.modules() if hasattr(m, STATE))
    taken = {id(parameter) for state in inner for parameter in state.parameters()}
    for path, layer in module.named_modules():
        for name, parameter in torch_modules.direct_parameters(layer).items():
            if parameter is None or parameter in ignored or id(parameter) in taken:
                continue
            if isinstance(parameter, DTensor):
                raise NotImplementedError(
                    f"fully_shard: {path}.{name} is already a DTensor. To shard over several dimensions of a mesh, "
                    "call torch_xla.runtime.use_spmd() before the mesh is made"
                )
            if parameter.dim() == 0:
                raise ValueError(
                    "fully_shard doesn't support scalar parameters. "
                    f"Change {path}.{name} to a 1D tensor with numel equal to 1."
                )
            found.setdefault(parameter, []).append((layer, name))
    return found


for _hook in (ShardedModule.before_forward, ShardedModule.after_forward):
    dynamo_hooks.graph_break(_hook)
