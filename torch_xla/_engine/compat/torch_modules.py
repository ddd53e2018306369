"""What torch's modules, data loaders, loss scalers and DistributedDataParallel have no hook for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from torch_xla._engine.compat.private_api import PrivateApi

_APPLY = PrivateApi(
    "torch.nn",
    "Module._apply",
    "module.to('xla') keeps its parameters",
    "module.to('xla') makes new parameters: make optimizers, and tie weights, after the move",
)
_NEXT = PrivateApi(
    "torch.utils.data.dataloader",
    "_BaseDataLoaderIter.__next__",
    "the time that steps wait for a DataLoader",
    "the report counts the time that a DataLoader takes as the step's own",
)
_FUSED = PrivateApi(
    "torch.optim.optimizer",
    "_get_fused_kernels_supported_devices",
    "torch.optim takes fused=True for parameters on xla",
    "optimizers on xla refuse fused=True, which is the default of transformers' Trainer: give it optim='adamw_torch'",
)
_FOREACH_IN_PYTHON = (
    "torch.optim and clip_grad_norm_ call torch once for all parameters, as they do on GPUs, not once for each",
    "steps of optimizers with many parameters cost the host twice: give them foreach=True",
)
_FOREACH = PrivateApi("torch.utils._foreach_utils", "_get_foreach_kernels_supported_devices", *_FOREACH_IN_PYTHON)
_FOREACH_TOO = PrivateApi("torch.optim.optimizer", "_get_foreach_kernels_supported_devices", *_FOREACH_IN_PYTHON)
#: The modules of torch.optim whose foreach form leaves xla out where ``capturable=True``.
_CAPTURABLE = [
    PrivateApi(
        f"torch.optim.{module}",
        "_get_capturable_supported_devices",
        "optimizers with capturable=True call torch once for all parameters, too",
        "optimizers with capturable=True raise AssertionError on xla: give them foreach=False",
    )
    for module in ("adadelta", "adam", "adamax", "asgd", "nadam", "radam")
]
_STEP = PrivateApi(
    "torch.amp",
    "GradScaler._maybe_opt_step",
    "torch_xla.amp.GradScaler overrides it, to decide on the device whether a step counts",
    "torch_xla.amp.GradScaler steps as torch's does, or fails in torch's words",
)
_QUEUE = PrivateApi(
    "torch.autograd",
    "Variable._execution_engine.queue_callback",
    "DistributedDataParallel averages gradients at the end of a backward",
    "DistributedDataParallel on xla raises at the first backward, and says why",
)
_DDP_HELPER = PrivateApi(
    "torch.nn.parallel",
    "DistributedDataParallel._ddp_init_helper",
    "DistributedDataParallel on xla averages gradients itself",
    "DistributedDataParallel fails on xla modules",
)
_DDP_FORWARD = PrivateApi(
    "torch.nn.parallel",
    "DistributedDataParallel._pre_forward",
    "DistributedDataParallel on xla gives all ranks the buffers of rank 0",
    "buffers (running means) differ between ranks",
)
_DDP_CHECK = PrivateApi(
    "torch.nn.parallel", "DistributedDataParallel._check_sync_bufs_pre_fwd", "as the one before", "as the one before"
)
_DDP_SYNC = PrivateApi(
    "torch.nn.parallel", "DistributedDataParallel._sync_buffers", "as the one before", "as the one before"
)

_BACKWARD = PrivateApi(
    "torch.autograd.graph",
    "_engine_run_backward",
    "a backward pass of xla tensors runs on the thread that asks for it",
    "it runs on a thread of the device, which costs a small pass half of its time",
)
# What torch.autograd.set_multithreading_enabled calls: that takes 5 us, where a small pass takes 80.
_BACKWARD_IN_PYTHON = ("as the one before", "as the one before")
_BACKWARD_TOO = PrivateApi("torch.autograd", "_engine_run_backward", *_BACKWARD_IN_PYTHON)
_THREADS_ON = PrivateApi("torch._C", "_is_multithreading_enabled", *_BACKWARD_IN_PYTHON)
_SET_THREADS = PrivateApi("torch._C", "_set_multithreading_enabled", *_BACKWARD_IN_PYTHON)

#: Hooks of a parameter, which swap_tensors does not carry over.
PARAMETER_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def direct_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """The parameters of a module itself by name, not a copy; those of its children are not among them."""
    return module._parameters


def direct_buffers(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """The buffers of a module itself by name, not a copy; those of its children are not among them."""
    return module._buffers


def direct_children(module: nn.Module) -> dict[str, nn.Module | None]:
    """The modules right below a module by name, not a copy."""
    return module._modules


def wrap_module_apply(ours: Callable[..., Any]) -> None:
    """What ``Module.to`` does to each module becomes ``ours(original, module, *args, **kwargs)``."""
    _APPLY.wrap(ours)


def wrap_data_loader_next(ours: Callable[..., Any]) -> None:
    """``next`` of every DataLoader's iterator becomes ``ours(original, iterator)``."""
    _NEXT.wrap(ours)


def extend_fused_devices(kind: str) -> None:
    """Adds a kind of device to those for which torch.optim takes ``fused=True``."""
    _FUSED.wrap(lambda original: [*original(), kind])


def extend_foreach_devices(kind: str) -> None:
    """Adds a kind of device to those for which torch.optim takes ``foreach=True`` where nothing is said."""
    for entry in (_FOREACH, _FOREACH_TOO, *_CAPTURABLE):
        entry.wrap(lambda original, *args, **kwargs: list(dict.fromkeys([*original(*args, **kwargs), kind])))


def queue_backward_callback(call: Callable[[], None]) -> None:
    """Calls it once, when the backward that is running has computed all gradients. Raises MissingError."""
    _QUEUE.resolve()(call)


def wrap_ddp(helper: Callable[..., Any], before_forward: Callable[..., Any]) -> None:
    """Wraps what DistributedDataParallel does to set up its reducer, and at the beginning of a forward."""
    _DDP_HELPER.wrap(helper)
    _DDP_FORWARD.wrap(before_forward)


def use_python_reducer(ddp: Any, whether: bool) -> None:
    """Whether DistributedDataParallel leaves averaging to hooks in Python."""
    ddp._use_python_reducer = whether


def sync_ddp_buffers(ddp: Any) -> None:
    """Gives all ranks the buffers of rank 0, if this module is told to, and it is time."""
    if ddp._check_sync_bufs_pre_fwd():
        ddp._sync_buffers()


def ddp_parameters(ddp: Any) -> list[nn.Parameter]:
    """The parameters that a DistributedDataParallel looks after, each once."""
    return list(ddp._module_parameters)


def register_ddp_hook(ddp: Any, hook: Any) -> None:
    """Keeps a hook on a gradient with the others of a DistributedDataParallel, which takes them away with itself."""
    ddp._accum_grad_hooks.append(hook)


def parameter_hooks(parameter: torch.Tensor) -> dict[str, Any]:
    """The hooks of a parameter that swap_tensors leaves behind, by attribute."""
    return {name: getattr(parameter, name) for name in PARAMETER_HOOKS}


def wrap_backward(ours: Callable[..., Any]) -> None:
    """What every backward pass goes through becomes ``ours(original, outputs, ...)``."""
    _BACKWARD.wrap(ours)
    _BACKWARD_TOO.wrap(ours)


def autograd_multithreading() -> tuple[Callable[[], bool], Callable[[bool], None]] | None:
    """Whether autograd uses threads of its own for passes that this thread starts, and what sets it. Warns where that
    is missing, and is None then."""
    found = _THREADS_ON.resolve_or_none(), _SET_THREADS.resolve_or_none()
    if None in found:
        _SET_THREADS.warn_missing()
        return None
    return found


_KEPT = "torch.utils.checkpoint computes nothing again on xla, and saves no memory; torch_xla.utils.checkpoint does"
_DETACHED = PrivateApi("torch.utils.checkpoint", "detach_variable", "activation checkpointing that saves memory", _KEPT)
_FRAME = PrivateApi("torch.utils.checkpoint", "_CheckpointFrame.__init__", "the same, with use_reentrant=False", _KEPT)


def wrap_recomputation(detached: Callable[..., Any], frame: Callable[..., None]) -> None:
    """torch.utils.checkpoint's inputs of what is computed again become ``detached(original, inputs)``, and what
    computes it ``frame(original, frame, recompute_fn, ...)`` with use_reentrant=False."""
    _DETACHED.wrap(detached)
    _FRAME.wrap(frame)


def apply_to_direct_tensors(module: nn.Module, move: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Applies ``move`` to the parameters and buffers of a module itself, as module.to does."""
    module._apply(move, recurse=False)
