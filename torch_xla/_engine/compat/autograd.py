"""Private autograd queries: saved-tensor hooks."""

from __future__ import annotations

from torch_xla._engine.compat.private_api import PrivateApi

_HOOKS = PrivateApi(
    "torch._C",
    "_autograd._top_saved_tensors_default_hooks",
    "detection of saved-tensor hooks, to hide the residuals of captured functions from an enclosing checkpoint",
    "loops and pure functions inside torch.utils.checkpoint raise",
)


def has_saved_tensor_hooks() -> bool:
    """Whether saved-tensor hooks are active on this thread."""
    hooks = _HOOKS.resolve_or_none()
    return hooks is not None and hooks(True) is not None
