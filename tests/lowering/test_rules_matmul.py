"""Rules of matrix multiplication, compared with the CPU."""

from __future__ import annotations

import math

import jax
import pytest
import torch

import torch_xla._engine.lowering.rules.matmul  # noqa: F401
from tests.support.rule_check import check, each, run

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.complex64]


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape) + len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(shape, dtype=dtype)
    return torch.randint(-5, 6, shape).to(dtype)


PRODUCTS = [
    ("aten::mm", (3, 4), (4, 5)),
    ("aten::mm", (3, 0), (0, 5)),
    ("aten::mm", (0, 4), (4, 5)),
    ("aten::bmm", (2, 3, 4), (2, 4, 5)),
    ("aten::bmm", (0, 3, 4), (0, 4, 5)),
    ("aten::mv", (3, 4), (4,)),
    ("aten::dot", (7,), (7,)),
    ("aten::dot", (0,), (0,)),
    ("aten::outer", (3,), (4,)),
    ("aten::ger", (3,), (4,)),
]


@each(("name", "a", "b"), PRODUCTS)
@each("dtype", DTYPES)
def test_product(name: str, a: tuple[int, ...], b: tuple[int, ...], dtype: torch.dtype) -> None:
    check(name, rand(*a, dtype=dtype), rand(*b, dtype=dtype))


@each("dtype", [torch.float32, torch.complex64, torch.complex128, torch.int32])
def test_vdot(dtype: torch.dtype) -> None:
    check("aten::vdot", rand(6, dtype=dtype), rand(6, dtype=dtype).flip(0))


ADDED = [
    ("aten::addmm", (3, 5), (3, 4), (4, 5)),
    ("aten::addmm", (5,), (3, 4), (4, 5)),
    ("aten::addmm", (), (3, 4), (4, 5)),
    ("aten::addmm", (3, 1), (3, 0), (0, 5)),
    ("aten::addmv", (3,), (3, 4), (4,)),
    ("aten::addmv", (1,), (3, 4), (4,)),
    ("aten::addr", (3, 4), (3,), (4,)),
    ("aten::addr", (4,), (3,), (4,)),
    ("aten::addbmm", (3, 5), (2, 3, 4), (2, 4, 5)),
    ("aten::baddbmm", (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    ("aten::baddbmm", (5,), (2, 3, 4), (2, 4, 5)),
]


@each("factors", [{}, {"beta": 2, "alpha": 3}, {"beta": 0}, {"beta": 3, "alpha": -1}])
@each(("name", "c", "a", "b"), ADDED)
@each("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_added_product(name: str, c: tuple, a: tuple, b: tuple, dtype: torch.dtype, factors: dict) -> None:
    loose = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    check(name, rand(*c, dtype=dtype), rand(*a, dtype=dtype), rand(*b, dtype=dtype), **factors, **loose)


@each(("name", "c", "a", "b"), ADDED)
def test_fractional_factors(name: str, c: tuple, a: tuple, b: tuple) -> None:
    check(name, rand(*c), rand(*a), rand(*b), beta=0.25, alpha=1.5)


@each(("name", "c", "a", "b"), ADDED)
def test_zero_beta_hides_nan(name: str, c: tuple, a: tuple, b: tuple) -> None:
    check(name, torch.full(c, math.nan), rand(*a), rand(*b), beta=0)


def test_addr_bool_and_promotion() -> None:
    t = torch.tensor([True, False])
    check("aten::addr", torch.tensor([[False, True], [False, False]]), t, t, beta=True, alpha=True)
    check("aten::addr", torch.ones(2, 2), torch.arange(2), torch.arange(2), beta=0.5, alpha=2.5)


@each("use_gelu", [False, True])
@each("dtype", [torch.float32, torch.bfloat16])
def test_addmm_activation(use_gelu: bool, dtype: torch.dtype) -> None:
    args = rand(5, dtype=dtype), rand(3, 4, dtype=dtype), rand(4, 5, dtype=dtype)
    check("aten::_addmm_activation", *args, use_gelu=use_gelu, alpha=2)


def test_int_mm() -> None:
    a, b = torch.randint(-128, 127, (32, 64), dtype=torch.int8), torch.randint(-128, 127, (64, 16), dtype=torch.int8)
    check("aten::_int_mm", a // 16, b // 16)
    # On CPUs without VNNI, oneDNN adds pairs of products in 16 bits, which saturate.
    with jax.enable_x64(True):
        _, (got,) = run("aten::_int_mm", a, b)
    torch.testing.assert_close(got, a.int() @ b.int())


def test_long_sums_keep_float32() -> None:
    check("aten::mm", rand(8, 4096), rand(4096, 8), rtol=1e-5, atol=2e-4)
    check("aten::mm", rand(8, 4096, dtype=torch.bfloat16), rand(4096, 8, dtype=torch.bfloat16))


def test_products_of_64_bit_integers_as_on_a_tpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for TPUs multiplies and sums; here compiled by XLA's CPU compiler."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, tpu, default: tpu(*args))
    ints = lambda *shape: torch.randint(-(2**40), 2**40, shape)
    check("aten::mm", ints(3, 4), ints(4, 5))
    check("aten::mm", ints(3, 0), ints(0, 5))
    check("aten::bmm", ints(2, 3, 4), ints(2, 4, 5))
    check("aten::bmm", ints(0, 3, 4), ints(0, 4, 5))
    check("aten::mv", ints(3, 4), ints(4))
    check("aten::dot", ints(7), ints(7))
    check("aten::addbmm", ints(3, 5), ints(2, 3, 4), ints(2, 4, 5))
