"""The base class that modules get from fully_shard with a device in each process: torch's FSDPModule."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from torch import nn

from torch_xla.distributed.spmd._fully_shard_processes import STATE, ShardedModule

#: Methods of FSDPModule that tune what XLA schedules here; a gradient is reduced in each backward, which accumulates
#: to the same sum.
_WITHOUT_EFFECT = (
    "reset_iter_state", "set_is_last_backward", "set_requires_gradient_sync", "set_requires_all_reduce",
    "set_reshard_after_backward", "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch",
    "set_unshard_in_backward", "set_force_sum_reduction_for_comms", "set_allocate_memory_from_process_group_for_comm",
)  # fmt: skip


def _state(module: nn.Module) -> ShardedModule:
    state: ShardedModule = getattr(module, STATE)
    return state


def _no_op_method(name: str) -> Callable[..., None]:
    def without_effect(self: Any, *args: Any, **kwargs: Any) -> None:
        """No-op: XLA schedules the collectives of a step."""

    without_effect.__name__ = name
    return without_effect


def _unsupported_method(name: str) -> Callable[..., None]:
    def unsupported(self: Any, *args: Any, **kwargs: Any) -> None:
        raise NotImplementedError(f"{name}: fully_shard on xla records its collectives, which XLA compiles")

    unsupported.__name__ = name
    return unsupported


@functools.cache
def fsdp_module_class() -> type:
    """Return the class that modules get as a base class."""
    from torch.distributed.fsdp import FSDPModule, UnshardHandle

    class Handle(UnshardHandle):
        def wait(self) -> None:
            """Do nothing: the gather is recorded."""

    class ProcessFSDPModule(FSDPModule):
        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            return object.__new__(cls)

        def unshard(self, async_op: bool = False) -> UnshardHandle | None:
            """Replace the parameters by gathered ones until the next forward, backward or reshard()."""
            _state(self).gather([])  # type: ignore[arg-type]
            return Handle() if async_op else None

        def reshard(self) -> None:
            """Put the sharded parameters back."""
            _state(self).reshard()  # type: ignore[arg-type]

        def set_reshard_after_forward(self, reshard_after_forward: bool, recurse: bool = True) -> None:
            """Set whether backward gathers the parameters again."""
            modules: list[Any] = list(self.modules()) if recurse else [self]  # type: ignore[attr-defined]
            for module in modules:
                if hasattr(module, STATE):
                    _state(module).reshard_after_forward = reshard_after_forward

        def set_gradient_divide_factor(self, factor: float) -> None:
            """Set the divisor of the gradients' sum."""
            _state(self).divide_factor = float(factor)  # type: ignore[arg-type]

        def _apply(self, *args: Any, **kwargs: Any) -> Any:
            self.reshard()
            return super(FSDPModule, self)._apply(*args, **kwargs)  # type: ignore[misc]

    inherited = {name for name in dir(FSDPModule) if name.startswith("set_")} - set(vars(ProcessFSDPModule))
    for name in sorted(inherited | set(_WITHOUT_EFFECT)):
        method = _no_op_method(name) if name in _WITHOUT_EFFECT else _unsupported_method(name)
        setattr(ProcessFSDPModule, name, method)
    return ProcessFSDPModule
