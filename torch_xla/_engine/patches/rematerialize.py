"""torch.utils.checkpoint on xla: what is computed again starts behind a barrier.

XLA would find that both passes compute the same values, and keep those of the first: nothing would be saved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torch_xla._engine import recorder
from torch_xla._engine.base.compat import modules as compat
from torch_xla._engine.base.imports import when_imported


def behind_barrier(values: Sequence[Any], after: Sequence[torch.Tensor] = ()) -> list[Any]:
    """The values, each xla tensor a leaf of its own, which XLA computes apart from whatever else reads the same.

    They are read once those of ``after`` are there: otherwise XLA may compute all of a model again at once. Needs for
    gradients stay.
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


def _newest(values: Sequence[Any]) -> list[torch.Tensor]:
    """What was recorded last on the device of the values: in a backward pass, the gradient that it goes on from."""
    device = next((v.device.index for v in values if _is_xla(v)), None)
    found = None if device is None else recorder.module().newest(device)
    return [] if found is None else [found]


def _detached(original: Callable[..., Any], inputs: Any) -> Any:
    after = _newest(inputs)
    return tuple(behind_barrier(original(inputs), after))


def _frame(original: Callable[..., None], frame: Any, recompute: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    original(frame, lambda *inputs: recompute(*behind_barrier(inputs, _newest(inputs))), *args, **kwargs)


def install() -> None:
    """Wraps both ways of torch.utils.checkpoint; once."""
    when_imported("torch.utils.checkpoint", lambda _: compat.wrap_recomputation(_detached, _frame))
