"""Dtypes, shapes and numbers of the programs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
COMPLEX = (torch.complex64, torch.complex128)
INTS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *COMPLEX, *INTS, torch.bool)
#: Those that few operators of torch know.
UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
SHAPES = ((2, 3), (3,), (), (0,), (0, 3), (2, 0), (1, 3), (2, 1), (4, 4), (2, 2, 2), (1,), (6,))


def values(shape: tuple[int, ...], dtype: torch.dtype, k: int) -> Tensor:
    """Small numbers, some of them negative, and for even ``k`` what is special of the dtype."""
    count = 1
    for size in shape:
        count *= size
    numbers = (torch.arange(count, dtype=torch.float64) * 3 + k) % 7 - 3
    if dtype in COMPLEX:
        return torch.complex(numbers, numbers.flip(0) + 1).to(dtype).reshape(shape)
    found = (numbers.abs() if dtype is torch.uint8 else numbers).to(dtype).reshape(shape)
    if k % 4 == 0 and dtype in FLOATS and count > 1:
        found.view(-1)[k % count] = (float("nan"), float("inf"), -0.0, float("-inf"))[k // 4 % 4]
    return found


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
