"""torch's fused optimizers on xla: one graph operation updates all parameters.

``torch.optim.AdamW(..., fused=True)`` (the default of transformers' Trainer), Adam, SGD and Adagrad. The step count is
a tensor on the device, so the program is the same in each step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from torch_xla._engine.compat import torch_modules

_library = torch.library.Library("torch_xla", "FRAGMENT")

_ADAM = (
    "Tensor[] self, Tensor[] grads, Tensor[] exp_avgs, Tensor[] exp_avg_sqs, Tensor[] max_exp_avg_sqs, "
    "Tensor[] state_steps, *, {lr} lr, Scalar beta1, Scalar beta2, Scalar weight_decay, Scalar eps, bool amsgrad, "
    "bool maximize"
)
#: torch operator without ``_fused_`` -> (its arguments, with those that it writes to first; the number of these). A
#: float of torch is a Scalar here: a Scalar is a program input, whereas a float would be a constant of the program.
_SCHEMAS = {
    "adam": (_ADAM, 5),
    "adamw": (_ADAM, 5),
    "sgd": (
        "Tensor[] self, Tensor[] grads, Tensor[] momentum_buffer_list, *, Scalar weight_decay, Scalar momentum, "
        "{lr} lr, Scalar dampening, bool nesterov, bool maximize, bool is_first_step",
        3,
    ),
    "adagrad": (
        "Tensor[] self, Tensor[] grads, Tensor[] state_sums, Tensor[] state_steps, *, {lr} lr, Scalar lr_decay, "
        "Scalar weight_decay, Scalar eps, bool maximize",
        3,
    ),
}


def define() -> None:
    """Define the operators ``torch_xla::fused_adam`` etc., once.

    Each takes the arguments of ``aten::_fused_adam_`` etc., and returns the new values of all lists that it writes to.
    """
    for name, (arguments, lists) in _SCHEMAS.items():
        for overload, rate in (("", "Scalar"), (".tensor_lr", "Tensor")):
            schema = f"{arguments.format(lr=rate)}, Tensor? grad_scale=None, Tensor? found_inf=None"
            _library.define(f"fused_{name}{overload}({schema}) -> Tensor[]")
            _library.impl(f"fused_{name}{overload}", _empty_like_lists(lists), "Meta")


def _empty_like_lists(lists: int) -> Callable[..., list[torch.Tensor]]:
    def meta(*arguments: Sequence[torch.Tensor], **_: object) -> list[torch.Tensor]:
        return [torch.empty_like(x) for tensors in arguments[:lists] for x in tensors]

    return meta


def patch_fused_optimizers() -> None:
    """Make torch.optim accept ``fused=True`` for parameters on xla, and use ``foreach=True`` by default."""
    torch_modules.extend_fused_devices("xla")
    torch_modules.extend_foreach_devices("xla")
