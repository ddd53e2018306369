"""Dtypes that no device supports raise at the line that makes a tensor, never inside a graph."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_xla
from torch_xla._engine.base import dtypes

MISSING = sorted(
    {d for d in vars(torch).values() if isinstance(d, torch.dtype) and not dtypes.is_supported(d)}, key=str
)
WAYS: dict[str, Callable[[torch.dtype], torch.Tensor]] = {
    "empty": lambda dtype: torch.empty(4, dtype=dtype, device="xla"),
    "zeros": lambda dtype: torch.zeros(4, dtype=dtype, device="xla"),
    "to": lambda dtype: torch.ones(4, device="xla").to(dtype),
    "from the CPU": lambda dtype: torch.empty(4, dtype=dtype).to("xla"),
    "view": lambda dtype: torch.ones(8, dtype=torch.uint8, device="xla").view(dtype),
    "sum": lambda dtype: torch.ones(4, device="xla").sum(dtype=dtype),
}


@pytest.mark.filterwarnings("ignore")  # torch deprecates some dtypes
@pytest.mark.parametrize("way", WAYS)
def test_unsupported_dtype_raises_at_creation(way: str) -> None:
    x = torch.ones(2, device="xla")
    for dtype in MISSING:
        with pytest.raises((TypeError, RuntimeError)):
            WAYS[way](dtype)
    torch_xla.sync()
    assert (x + 1).tolist() == [2, 2]
