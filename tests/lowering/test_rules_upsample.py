"""Rules of upsampling and its gradients, compared with the CPU."""

from __future__ import annotations

import pytest
import torch

import torch_xla._engine.lowering.rules.upsample  # noqa: F401
from tests.support.rule_check import check, each

aten = torch.ops.aten
NEAREST = ["upsample_nearest", "_upsample_nearest_exact"]
SIZES = {1: [((2, 3, 7), [15]), ((2, 3, 8), [4])], 2: [((2, 3, 5, 7), [10, 5])], 3: [((1, 2, 3, 4, 5), [6, 3, 7])]}
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
SCALED = [((2, 3, 5, 7), [12, 4], [2.4, 0.7]), ((1, 2, 6, 6), [9, 13], [1.5, 2.2])]


def loose(dtype: torch.dtype) -> dict[str, float]:
    return {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-5}


def both(name: str, shape: tuple, size: list, *args: object, dtype: torch.dtype = torch.float32) -> None:
    torch.manual_seed(0)
    check(f"aten::{name}", torch.randn(shape).to(dtype), size, *args, **loose(dtype))
    grad = torch.randn(*shape[:2], *size).to(dtype)
    check(f"aten::{name}_backward", grad, size, list(shape), *args, **loose(dtype))


@pytest.mark.parametrize("mode", NEAREST)
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("dtype", DTYPES)
def test_nearest(mode: str, n: int, dtype: torch.dtype) -> None:
    for shape, size in SIZES[n]:
        both(f"{mode}{n}d", shape, size, dtype=dtype)


@each("mode", NEAREST)
def test_nearest_scales_and_bytes(mode: str) -> None:
    for shape, size, scales in SCALED:
        both(f"{mode}2d", shape, size, *scales)
    check(f"aten::{mode}2d", torch.randint(0, 255, (1, 2, 5, 5), dtype=torch.uint8), [7, 9])


@pytest.mark.parametrize("name", ["linear1d", "bilinear2d", "trilinear3d", "bicubic2d"])
@pytest.mark.parametrize("align_corners", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_interpolation(name: str, align_corners: bool, dtype: torch.dtype) -> None:
    for shape, size in SIZES[int(name[-2])]:
        both(f"upsample_{name}", shape, size, align_corners, dtype=dtype)


@pytest.mark.parametrize("name", ["bilinear2d", "bicubic2d"])
def test_interpolation_scales_and_edges(name: str) -> None:
    for shape, size, scales in SCALED:
        both(f"upsample_{name}", shape, size, False, *scales)
    both(f"upsample_{name}", (1, 1, 1, 4), [3, 1], True)
    both(f"upsample_{name}", (1, 1, 40, 3), [3, 3], False)
    both(f"upsample_{name}", (1, 1, 3, 3), [3, 40], False)


ANTIALIASED = [
    "_upsample_bilinear2d_aa",
    "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa",
]  # the last: not torch 2.11


@pytest.mark.parametrize("name", [name for name in ANTIALIASED if hasattr(torch.ops.aten, name)])
@pytest.mark.parametrize("align_corners", [False, True])
def test_antialiased(name: str, align_corners: bool) -> None:
    for shape, size in [((2, 3, 13, 11), [5, 7]), ((1, 1, 4, 9), [9, 2])]:
        both(name, shape, size, align_corners)
    both(name, (1, 2, 6, 6), [9, 3], False, 1.5, 0.5)


def test_bytes_are_rounded() -> None:
    x = torch.randint(0, 255, (1, 3, 5, 5), dtype=torch.uint8)
    check("aten::upsample_bilinear2d", x, [7, 9], False, atol=1, rtol=0)
