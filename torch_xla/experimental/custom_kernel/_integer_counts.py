"""Counts of integers under upstream's name, for mixtures of experts."""

from __future__ import annotations

import torch


def _histogram(input: torch.Tensor, min: int, max: int) -> torch.Tensor:
    """Return how often each integer from ``min`` to ``max`` occurs in a vector. torch.histc takes no integers.

    Args:
      input: int32[n]. Values outside the range are not counted.

    Returns:
      int32[max - min + 1], on the device of ``input``.

    Raises:
      AssertionError: the dtype or the range is not valid, as upstream raises.
    """
    assert input.dtype == torch.int32, f"_histogram: expected an int32 tensor, got {input.dtype}"
    assert min <= max, f"_histogram: expected min <= max, got {min} and {max}"
    values = torch.arange(min, max + 1, dtype=torch.int32, device=input.device)
    return (values.unsqueeze(1) == input.unsqueeze(0)).sum(1, dtype=torch.int32)
