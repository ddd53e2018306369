"""Bounds of clamp that the dtype does not have: the installed torch decides whether they raise, wrap or saturate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

import torch_xla

Function = Callable[[Tensor, int], Tensor | Sequence[Tensor]]

FUNCTIONS: dict[str, Function] = {
    "min": lambda x, bound: x.clamp(min=bound),
    "max": lambda x, bound: x.clamp(max=bound),
    "both": lambda x, bound: x.clamp(-bound, bound),
    "clamp_min": lambda x, bound: x.clamp_min(bound),
    "clamp_max_": lambda x, bound: x.clone().clamp_max_(bound),
    "foreach_clamp_min": lambda x, bound: torch._foreach_clamp_min([x, x + 1], bound),
    "foreach_clamp_max": lambda x, bound: torch._foreach_clamp_max([x, x + 1], [bound, bound]),
    "foreach_maximum": lambda x, bound: torch._foreach_maximum([x, x + 1], bound),
    "foreach_minimum": lambda x, bound: torch._foreach_minimum([x, x + 1], [bound, 2]),
}


def _outcome(function: Function, x: Tensor, bound: int) -> object:
    try:
        found = function(x, bound)
    except RuntimeError as error:
        return type(error), str(error).splitlines()[0]
    return [t.tolist() for t in ([found] if isinstance(found, Tensor) else found)]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_bounds_out_of_range(name: str, dtype: torch.dtype) -> None:
    """With constant bounds (-1, 1) and bounds that are operands of the program, on its first call and on later ones."""
    x = torch.tensor([0, 1, 100], dtype=dtype)
    for bound in (-1, 5, -200, 300, -1, 300, 2**16 + 3, -(2**16), 2**40, -(2**40)):
        assert _outcome(FUNCTIONS[name], x.to("xla"), bound) == _outcome(FUNCTIONS[name], x, bound), bound
    torch_xla.sync()
