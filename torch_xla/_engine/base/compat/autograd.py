"""What torch's autograd has no public way to ask."""

from __future__ import annotations

from torch_xla._engine.base.compat.private import Private

_HOOKS = Private(
    "torch._C",
    "_autograd._top_saved_tensors_default_hooks",
    "a function that is recorded once, below a checkpoint, saves nothing that the checkpoint sees",
    "a loop or a pure function below torch.utils.checkpoint raises: it keeps tensors",
)


def has_saved_tensor_hooks() -> bool:
    """Whether hooks on saved tensors are set on this thread."""
    hooks = _HOOKS.find()
    return hooks is not None and hooks(True) is not None
