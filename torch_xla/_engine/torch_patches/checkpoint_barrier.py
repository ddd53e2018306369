"""torch.utils.checkpoint on xla: put an optimization barrier before each recomputation.

Without the barrier XLA would find that both passes compute equal values, keep those of the first pass, and save no
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.import_hooks import on_import
from torch_xla._engine.compat import torch_modules as compat


def with_optimization_barrier(values: Sequence[Any], after: Sequence[torch.Tensor] = ()) -> list[Any]:
    """Return the values behind an optimization barrier, each xla tensor as a new leaf that XLA computes separately.

    The barrier depends on the tensors in ``after``: otherwise XLA may recompute all of a model at the same time.
    requires_grad is preserved.
    """
    tensors = [v for v in values if _is_xla(v)]
    if not tensors:
        return list(values)
    with torch.no_grad():
        given = [t.detach() for t in (*tensors, *filter(_is_xla, after))]
        apart = iter(torch.ops.torch_xla.optimization_barrier(given))
    return [next(apart).requires_grad_(v.requires_grad) if _is_xla(v) else v for v in values]


def _is_xla(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "xla"


def _latest_value(values: Sequence[Any]) -> list[torch.Tensor]:
    """Return the tensor recorded last on the device of the values: in backward, the gradient that arrived last."""
    device = next((v.device.index for v in values if _is_xla(v)), None)
    found = None if device is None else recorder.bindings().latest_values(device)
    return [] if found is None else [found]


def _detach_with_barrier(original: Callable[..., Any], inputs: Any) -> Any:
    after = _latest_value(inputs)
    return tuple(with_optimization_barrier(original(inputs), after))


def _frame(original: Callable[..., None], frame: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    original(
        frame, lambda *inputs: recompute(*with_optimization_barrier(inputs, _latest_value(inputs))), *args, **kwargs
    )


def patch_checkpoint() -> None:
    """Wrap both variants of torch.utils.checkpoint, once."""
    on_import("torch.utils.checkpoint", lambda _: compat.wrap_recomputation(_detach_with_barrier, _frame))
