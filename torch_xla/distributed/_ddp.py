"""DistributedDataParallel for modules on xla devices: gradients are averaged at the end of each backward.

torch's C++ reducer copies gradients into buckets by their storage, which xla tensors do not have, and overlaps
communication with a running backward; here backward is recorded, and XLA schedules the whole step. So for xla modules
DDP uses torch's switch for a Python reducer with the reducer of this module: the first gradient of a backward queues an
autograd callback for its end, and one collective then averages all gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from torch_xla._engine.compat import torch_modules
from torch_xla._engine.diagnostics import recompilation_tracker
from torch_xla._engine.job import rendezvous


class _Reducer:
    """Averages the gradients of one DDP module; lives as long as its hooks on the parameters.

    idle -> queued (by a gradient) -> idle (at the end of that backward, after averaging all gradients)
    """

    def __init__(self, ddp: Any) -> None:
        self._ddp = ddp
        self._parameters = [p for p in torch_modules.ddp_parameters(ddp) if p.requires_grad]
        self._queued = False
        for parameter in self._parameters:
            torch_modules.register_ddp_hook(ddp, parameter.register_post_accumulate_grad_hook(self._ready))

    def _ready(self, _: torch.Tensor) -> None:
        if self._ddp.require_backward_grad_sync and not self._queued:
            self._queued = True
            torch_modules.queue_backward_callback(self._average)

    def _average(self) -> None:
        self._queued = False
        if self._ddp.find_unused_parameters:
            self._fill_unused()
        elif missing := self._missing():
            raise RuntimeError(
                f"DistributedDataParallel: {len(missing)} parameters got no gradient in this backward, such as "
                f"{missing[:3]}; pass find_unused_parameters=True if forward does not use every parameter each time"
            )
        with torch.no_grad():
            gradients = [p.grad for p in self._parameters if p.grad is not None]
            self._ddp.process_group.average(gradients)

    def _missing(self) -> list[str]:
        ours = {id(p) for p in self._parameters if p.grad is None}
        return [name for name, p in self._ddp.module.named_parameters() if id(p) in ours]

    def _fill_unused(self) -> None:
        """Create zero gradients where other ranks have one; a parameter that no rank used retains None."""
        mine = bytes(p.grad is not None for p in self._parameters)
        ranks = dist.get_process_group_ranks(self._ddp.process_group)
        every = rendezvous.rendezvous("ddp unused parameters", mine, ranks)
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None and any(used[index] for used in every):
                parameter.grad = torch.zeros_like(parameter)


def _set_up(original: Callable[..., None], ddp: Any, parameters: Any, *args: Any, **kwargs: Any) -> None:
    # torch's reducer is created but installs no hooks.
    on_xla = parameters[0].device.type == "xla"
    if on_xla:
        torch_modules.use_python_reducer(ddp, True)
    original(ddp, parameters, *args, **kwargs)
    if on_xla:
        torch_modules.use_python_reducer(ddp, False)  # otherwise __init__ sets up a compiler


def _before_forward(original: Callable[..., Any], ddp: Any, *inputs: Any, **kwargs: Any) -> Any:
    if ddp.device_type == "xla":
        torch_modules.sync_ddp_buffers(ddp)
    return original(ddp, *inputs, **kwargs)


def patch_ddp() -> None:
    """Patch DistributedDataParallel to support xla modules, once."""
    cls: Any = DistributedDataParallel
    if getattr(cls.__init__, "_torch_xla", False):
        return
    init, hook = cls.__init__, cls.register_comm_hook

    @functools.wraps(init)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        with recompilation_tracker.tracker.suspend():  # torch compares and broadcasts parameters at the user's line
            init(self, *args, **kwargs)
        if self.device_type == "xla":
            torch_modules.use_python_reducer(self, True)
            _Reducer(self)

    @functools.wraps(hook)
    def register_comm_hook(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.device_type == "xla":
            raise NotImplementedError("register_comm_hook: DistributedDataParallel on xla has no gradient buckets")
        hook(self, *args, **kwargs)

    __init__._torch_xla = True  # type: ignore[attr-defined]
    cls.__init__, cls.register_comm_hook = __init__, register_comm_hook
    torch_modules.wrap_ddp(_set_up, _before_forward)
