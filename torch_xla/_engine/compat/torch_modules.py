"""Private hooks of torch.nn, torch.optim, DataLoader, GradScaler, DistributedDataParallel and checkpointing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla._engine.compat import dynamo
from torch_xla._engine.compat.private_api import PrivateApi

_APPLY = PrivateApi(
    "torch.nn",
    "Module._apply",
    "module.to('xla') preserves Parameter objects",
    "module.to('xla') creates new parameters: create optimizers and tie weights after the move",
)
_NEXT = PrivateApi(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__next__",
    "timing of waits for a DataLoader",
    "reports attribute the waits for a DataLoader to the step itself",
)
_ITERATOR = PrivateApi(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter",
    "DataLoader(pin_memory=True) pins nothing for xla, and does not warn",
    "DataLoader(pin_memory=True) raises while xla is the accelerator",
)
_FUSED = PrivateApi(
    "torch.optim.optimizer",
    "_get_fused_kernels_supported_devices",
    "torch.optim takes fused=True for parameters on xla",
    "optimizers on xla reject fused=True, the default of transformers' Trainer: use optim='adamw_torch'",
)
_FOREACH_IN_PYTHON = (
    "torch.optim and clip_grad_norm_ use foreach by default for parameters on xla, as on GPUs",
    "optimizer steps with many parameters take twice the host time: use foreach=True",
)
_FOREACH = PrivateApi("torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices", *_FOREACH_IN_PYTHON)
_FOREACH_TOO = PrivateApi("torch.optim.optimizer", "_get_foreach_kernels_supported_devices", *_FOREACH_IN_PYTHON)
#: The modules of torch.optim whose foreach implementation excludes xla with ``capturable=True``.
_CAPTURABLE = [
    PrivateApi(
        f"torch.optim.{module}",
        "_get_capturable_supported_devices",
        "optimizers with capturable=True use foreach for parameters on xla",
        "optimizers with capturable=True raise AssertionError on xla: use foreach=False",
    )
    for module in ("adadelta", "adam", "adamax", "asgd", "nadam", "radam")
]
_AUTOCAST = PrivateApi(
    "torch.amp.autocast_mode",
    "autocast.__init__",
    "a warning that torch.autocast('cuda') has no effect on xla tensors",
    "torch.autocast('cuda') has no effect on xla tensors, without a warning",
)
_LOAD_STATE = PrivateApi(  # public, but it has no hook for all optimizers
    "torch.optim",
    "Optimizer.load_state_dict",
    "optimizers loaded with map_location='xla' keep their step counts on the CPU",
    "optimizers loaded with map_location='xla' read a value per parameter and step: use map_location='cpu'",
)
_STEP = PrivateApi(
    "torch.amp",
    "GradScaler._maybe_opt_step",
    "torch_xla.amp.GradScaler decides on the device whether to skip a step",
    "torch_xla.amp.GradScaler steps as torch's does, or raises torch's errors",
)
_QUEUE = PrivateApi(
    "torch.autograd",
    "Variable._execution_engine.queue_callback",
    "DistributedDataParallel averages gradients at the end of backward",
    "DistributedDataParallel on xla raises at the first backward",
)
_TOP_HOOKS = PrivateApi(
    "torch._C._autograd",
    "_top_saved_tensors_default_hooks",
    "fully_shard leaves what a checkpointed layer saves to torch.utils.checkpoint",
    "fully_shard saves what a checkpointed layer would compute again",
)
_DDP_HELPER = PrivateApi(
    "torch.nn.parallel",
    "DistributedDataParallel._ddp_init_helper",
    "DistributedDataParallel on xla averages gradients without torch's C++ reducer",
    "DistributedDataParallel fails on xla modules",
)
_DDP_FORWARD = PrivateApi(
    "torch.nn.parallel",
    "DistributedDataParallel._pre_forward",
    "DistributedDataParallel on xla broadcasts the buffers of rank 0",
    "buffers (running means) differ between ranks",
)
_DDP_CHECK = PrivateApi(
    "torch.nn.parallel", "DistributedDataParallel._check_sync_bufs_pre_fwd", _DDP_FORWARD.purpose, _DDP_FORWARD.without
)
_DDP_SYNC = PrivateApi(
    "torch.nn.parallel", "DistributedDataParallel._sync_buffers", _DDP_FORWARD.purpose, _DDP_FORWARD.without
)

_BACKWARD = PrivateApi(
    "torch.autograd.graph",
    "_engine_run_backward",
    "backward passes of xla tensors run on the calling thread",
    "backward passes run on a device thread, which takes half of the time of a small pass",
)
# What torch.autograd.set_multithreading_enabled calls: the public function takes 5 us, a small pass takes 80 us.
_BACKWARD_IN_PYTHON = (_BACKWARD.purpose, _BACKWARD.without)
_BACKWARD_TOO = PrivateApi("torch.autograd", "_engine_run_backward", *_BACKWARD_IN_PYTHON)
_THREADS_ON = PrivateApi("torch._C", "_is_multithreading_enabled", *_BACKWARD_IN_PYTHON)
_SET_THREADS = PrivateApi("torch._C", "_set_multithreading_enabled", *_BACKWARD_IN_PYTHON)

#: Hooks of a parameter that swap_tensors does not transfer.
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def direct_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return the dictionary (not a copy) of a module's own parameters, without those of its children."""
    return module._parameters


def direct_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the dictionary (not a copy) of a module's own buffers, without those of its children."""
    return module._buffers


def direct_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """Return the dictionary (not a copy) of a module's direct children."""
    return module._modules


def wrap_module_apply(wrapper: Callable[..., Any]) -> None:
    """Wrap what ``Module.to`` does to each module: ``wrapper(original, module, *args, **kwargs)``."""
    _APPLY.wrap(wrapper)


def wrap_data_loader_next(wrapper: Callable[..., Any]) -> None:
    """Wrap ``next`` of every DataLoader's iterator: ``wrapper(original, iterator)``."""
    _NEXT.wrap(wrapper)


def never_pin_memory(kind: str) -> None:
    """Make DataLoaders pin no memory while the accelerator is a device type: pin_memory=True has no effect then."""
    iterator = _ITERATOR.resolve_or_none()
    if iterator is None:
        _ITERATOR.warn_missing()
        return

    def read(self: Any) -> bool:
        return bool(vars(self)["_pin_memory"]) and getattr(self, "_pin_memory_device", None) != kind

    def write(self: Any, value: bool) -> None:
        vars(self)["_pin_memory"] = value

    iterator._pin_memory = property(read, write)  # a property adds no frame below the warnings of the constructor


def extend_fused_devices(kind: str) -> None:
    """Add a device type to those for which torch.optim accepts ``fused=True``."""
    _FUSED.wrap(lambda original: [*original(), kind])


def extend_foreach_devices(kind: str) -> None:
    """Add a device type to those for which torch.optim uses ``foreach=True`` by default."""
    for entry in (_FOREACH, _FOREACH_TOO, *_CAPTURABLE):
        entry.wrap(lambda original, *args, **kwargs: list(dict.fromkeys([*original(*args, **kwargs), kind])))


def wrap_autocast(wrapper: Callable[..., None]) -> None:
    """Wrap the constructor of torch.autocast: ``wrapper(original, context, device_type, ...)``."""
    _AUTOCAST.wrap(wrapper)


def wrap_load_optimizer_state(wrapper: Callable[..., Any]) -> None:
    """Wrap ``load_state_dict`` of every optimizer: ``wrapper(original, optimizer, state_dict)``."""
    _LOAD_STATE.wrap(wrapper)


def queue_backward_callback(call: Callable[[], None]) -> None:
    """Call ``call`` once, when the running backward has computed all gradients. Raises MissingPrivateApiError."""
    _QUEUE.resolve()(call)


def top_saved_tensor_hooks() -> tuple[Any, Any] | None:
    """Return the functions of the innermost ``saved_tensors_hooks`` that are active."""
    find = _TOP_HOOKS.resolve_or_none()
    found: tuple[Any, Any] | None = None if find is None else find(False)
    return found


def wrap_ddp(helper: Callable[..., Any], before_forward: Callable[..., Any]) -> None:
    """Wrap DistributedDataParallel's reducer setup, and the start of its forward."""
    _DDP_HELPER.wrap(helper)
    _DDP_FORWARD.wrap(before_forward)


def use_python_reducer(ddp: Any, whether: bool) -> None:
    """Set whether DistributedDataParallel leaves averaging to hooks in Python."""
    ddp._use_python_reducer = whether


def sync_ddp_buffers(ddp: Any) -> None:
    """Broadcast the buffers of rank 0 to all ranks, if the module is configured to and a synchronization is due."""
    if ddp._check_sync_bufs_pre_fwd():
        ddp._sync_buffers()


def ddp_parameters(ddp: Any) -> list[nn.Parameter]:
    """Return the parameters that a DistributedDataParallel manages, each once."""
    return list(ddp._module_parameters)


def register_ddp_hook(ddp: Any, hook: Any) -> None:
    """Register a gradient hook with a DistributedDataParallel, which removes it with its own hooks."""
    ddp._accum_grad_hooks.append(hook)


def parameter_hooks(parameter: torch.Tensor) -> dict[str, Any]:
    """Return the hooks of a parameter that swap_tensors does not transfer, by attribute."""
    return {name: getattr(parameter, name) for name in PARAMETER_HOOKS}


def wrap_backward(wrapper: Callable[..., Any]) -> None:
    """Wrap the function that every backward pass calls: ``wrapper(original, outputs, ...)``. Dynamo skips it."""
    for entry in (_BACKWARD, _BACKWARD_TOO):
        entry.wrap(wrapper)
        dynamo.skip_frames_of(entry.resolve())


def autograd_multithreading() -> tuple[Callable[[], bool], Callable[[bool], None]] | None:
    """Return the getter and the setter of autograd multithreading for this thread; None, with a warning, if missing."""
    found = _THREADS_ON.resolve_or_none(), _SET_THREADS.resolve_or_none()
    if None in found:
        _SET_THREADS.warn_missing()
        return None
    return found


_NO_CHECKPOINT = "torch.utils.checkpoint saves no memory on xla; use torch_xla.utils.checkpoint"
_DETACHED = PrivateApi(
    "torch.utils.checkpoint", "detach_variable", "activation checkpointing that saves memory", _NO_CHECKPOINT
)
_FRAME = PrivateApi(
    "torch.utils.checkpoint", "_CheckpointFrame.__init__", "checkpoint(use_reentrant=False)", _NO_CHECKPOINT
)


def wrap_recomputation(detached: Callable[..., Any], frame: Callable[..., None]) -> None:
    """Wrap both variants of torch.utils.checkpoint.

    Args:
      detached: ``detached(original, inputs)`` replaces the function that detaches the inputs of a recomputation.
      frame: ``frame(original, frame, recompute_fn, ...)`` replaces the constructor of use_reentrant=False.
    """
    _DETACHED.wrap(detached)
    _FRAME.wrap(frame)


def apply_to_direct_tensors(module: nn.Module, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Apply ``move`` to a module's own parameters and buffers, as module.to does."""
    module._apply(move, recurse=False)
