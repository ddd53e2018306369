"""The arguments of one call of a step, as a replay takes them: flat, with views copied and CPU tensors uploaded.

A step may move its batch to the device itself. While it is recorded, ``HostArguments`` gives it the uploaded tensor for
``batch.to("xla")``, so that the graph has an argument there; any other use of the values on the CPU is noted.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import jax
import torch
from torch.overrides import TorchFunctionMode

from torch_xla._engine import recorder
from torch_xla._engine.base import user_frames

_METADATA = frozenset({
    "size", "dim", "ndimension", "numel", "nelement", "stride", "is_floating_point", "is_complex", "is_contiguous",
    "__len__", "element_size", "get_device", "is_pinned",
})  # fmt: skip
_ATTRIBUTES = frozenset({"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda", "is_xla", "names"})


def _is_uploaded(leaf: Any) -> bool:
    return (
        isinstance(leaf, torch.Tensor)
        and leaf.device.type == "cpu"
        and type(leaf) is torch.Tensor
        and leaf.layout == torch.strided
        and not leaf.requires_grad
    )


class StepArguments:
    """The arguments of one call.

    Attributes:
      originals: the leaves of (args, kwargs).
      leaves: the same, with a copy of each view, which has no buffer, and an upload of each CPU tensor.
      key: what must be equal for two calls to be compared leaf by leaf.
    """

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.originals, self.structure = jax.tree_util.tree_flatten((args, kwargs))
        self.uploaded = tuple(i for i, leaf in enumerate(self.originals) if _is_uploaded(leaf))
        self.leaves: Sequence[Any] = _copy_views(self.originals)
        self.key: Hashable = (self.structure, self.uploaded)
        self._are_uploaded = not self.uploaded

    def upload(self) -> None:
        """Replace the CPU tensors among the leaves, once."""
        if not self._are_uploaded:
            self._are_uploaded = True
            leaves = list(self.leaves)
            for i in self.uploaded:
                leaves[i] = self.originals[i].to("xla")
            self.leaves = leaves

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """Return (args, kwargs) with these leaves."""
        return jax.tree_util.tree_unflatten(self.structure, leaves)


def _copy_views(leaves: list[Any]) -> list[Any]:
    is_view = recorder.bindings().is_view
    return [
        leaf.clone()
        if isinstance(leaf, torch.Tensor) and leaf.device.type == "xla" and not leaf.requires_grad and is_view(leaf)
        else leaf
        for leaf in leaves
    ]


class HostArguments(TorchFunctionMode):
    """Makes moves of CPU arguments to the device return the uploaded tensor; notes any other use of their values."""

    def __init__(self, arguments: StepArguments) -> None:
        super().__init__()
        self._uploads = {id(arguments.originals[i]): arguments.leaves[i] for i in arguments.uploaded}
        self.other_use: str | None = None  # function and line of the first

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if self._uploads:
            upload = self._uploads.get(id(args[0])) if args else None
            if upload is not None and func is torch.Tensor.to and _names_device([*args[1:], *kwargs.values()]):
                return func(upload, *args[1:], **kwargs)
            if self.other_use is None and not _reads_metadata(func) and self._has_upload([*args, *kwargs.values()]):
                self.other_use = f"{getattr(func, '__name__', func)}() at {user_frames.user_line()}"
        return func(*args, **kwargs)

    def _has_upload(self, values: Sequence[Any]) -> bool:
        return any(
            id(value) in self._uploads or (isinstance(value, list | tuple) and self._has_upload(value))
            for value in values
        )


def _reads_metadata(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    return name in _METADATA or (name == "__get__" and getattr(func.__self__, "__name__", "") in _ATTRIBUTES)


def _names_device(values: Sequence[Any]) -> bool:
    """Whether the arguments of Tensor.to name an xla device."""
    for value in values:
        if isinstance(value, torch.device | torch.Tensor) and str(getattr(value, "device", value)).startswith("xla"):
            return True
        if isinstance(value, str) and value.startswith("xla"):
            return True
    return False
