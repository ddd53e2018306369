"""What torch's autograd has no public way to ask."""

from __future__ import annotations

from torch_xla._engine.compat.private_api import PrivateApi

_HOOKS = PrivateApi(
    "torch._C",
    "_autograd._top_saved_tensors_default_hooks",
    "a function that is recorded once, below a checkpoint, saves nothing that the checkpoint sees",
    "a loop or a pure function below torch.utils.checkpoint raises: it keeps tensors",
)


def has_saved_tensor_hooks() -> bool:
    """Whether hooks on saved tensors are set on this thread."""
    hooks = _HOOKS.resolve_or_none()
    return hooks is not None and hooks(True) is not None
