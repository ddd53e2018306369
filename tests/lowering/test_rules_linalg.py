"""Rules of linear algebra, Fourier transforms, im2col and grid sampling, compared with the CPU."""

from __future__ import annotations

import jax
import pytest
import torch

import torch_xla._engine.lowering.rules.fft
import torch_xla._engine.lowering.rules.grid_sample
import torch_xla._engine.lowering.rules.im2col
import torch_xla._engine.lowering.rules.linalg
import torch_xla._engine.lowering.rules.linalg_qr  # noqa: F401
from tests.support.rule_check import check, each, run

aten = torch.ops.aten
DTYPES = [torch.float32, torch.complex128]
LOOSE = {"rtol": 1e-3, "atol": 1e-3}


def rand(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=dtype)


def positive(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    a = rand(*shape, dtype=dtype)
    return a @ a.mH + shape[-1] * torch.eye(shape[-1], dtype=dtype)


def same_product(name: str, *args: object, product: object, **kwargs: object) -> None:
    """Check the product of the factors, and their shapes and dtypes; the factors may differ in sign."""
    with jax.enable_x64(True):
        expected, got = run(name, *args, **kwargs)
    assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in expected]
    torch.testing.assert_close(product(*got), product(*expected), **LOOSE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 5)])
def test_qr_svd(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a = rand(*shape, dtype=dtype)
    for mode in ("reduced", "complete"):
        same_product("aten::linalg_qr", a, mode, product=lambda q, r: q @ r)
    same_product("aten::linalg_qr", a, "r", product=lambda q, r: r.mH @ r)
    rank = min(shape[-2:])
    whole = lambda u, s, v: (u[..., :rank] * s[..., None, :]) @ v[..., :rank, :]
    for full in (False, True):
        same_product("aten::_linalg_svd", a, full, product=whole)
    check("aten::_linalg_svd", a, False, False, **LOOSE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigh(dtype: torch.dtype, uplo: str) -> None:
    a = rand(2, 4, 4, dtype=dtype)  # only one triangle is read
    if dtype.is_complex:
        a.diagonal(dim1=-2, dim2=-1).imag.zero_()
    same_product("aten::_linalg_eigh", a, uplo, product=lambda w, v: (v * w[..., None, :].to(v.dtype)) @ v.mH)
    check("aten::_linalg_eigh", a, uplo, False, **LOOSE)


@each("dtype", DTYPES)
def test_lu(dtype: torch.dtype) -> None:
    for a in (rand(2, 3, 5, dtype=dtype), rand(5, 3, dtype=dtype)):
        check("aten::linalg_lu_factor_ex", a, **LOOSE)
        check("aten::linalg_lu", a, **LOOSE)
        lu, pivots, _ = aten.linalg_lu_factor_ex(a)
        check("aten::lu_unpack", lu, pivots, True, False, **LOOSE)
        check("aten::lu_unpack", lu, pivots, False, True, **LOOSE)
    lu, pivots, _ = aten.linalg_lu_factor_ex(rand(2, 4, 4, dtype=dtype))
    for left in (True, False):
        for adjoint in (True, False):
            check("aten::linalg_lu_solve", lu, pivots, rand(2, 4, 4, dtype=dtype), left=left, adjoint=adjoint, **LOOSE)


@each("dtype", DTYPES)
def test_solve_inverse_determinant(dtype: torch.dtype) -> None:
    a = rand(2, 4, 4, dtype=dtype)
    check("aten::_linalg_solve_ex", a, rand(2, 4, 3, dtype=dtype), **LOOSE)
    check("aten::_linalg_solve_ex", a, rand(2, 4, dtype=dtype), **LOOSE)
    check("aten::_linalg_solve_ex", a, rand(2, 3, 4, dtype=dtype), left=False, **LOOSE)
    check("aten::_linalg_solve_ex", a, rand(4, 3, dtype=dtype), **LOOSE)
    for name in ("linalg_inv_ex", "_linalg_det", "_linalg_slogdet"):
        check(f"aten::{name}", a, **LOOSE)
    check("aten::_linalg_slogdet", a[0], **LOOSE)
    check("aten::_linalg_det", a[:0], **LOOSE)


def test_singular_matrices_are_reported() -> None:
    """The elimination of this matrix is exact (halves and quarters), so that the position of the zero is defined."""
    a = torch.tensor([[4.0, 2.0, 1.0], [2.0, 1.0, 0.5], [0.0, 0.0, 1.0]])
    check("aten::linalg_lu_factor_ex", a)
    for name in ("_linalg_det", "_linalg_slogdet"):
        check(f"aten::{name}", a)
    with jax.enable_x64(True):
        expected, got = run("aten::linalg_inv_ex", a)
    assert expected[1] == got[1] == 2


def test_singular_up_to_rounding() -> None:
    """6 / 3 - 2 is 0 or one bit, depending on the CPU's rounding, so that pivots and factors may differ."""
    a = torch.tensor([[1.0, 2.0, 3.0], [2.0, 4.0, 6.0], [0.0, 0.0, 1.0]])
    with jax.enable_x64(True):
        for name, *parts in (("linalg_lu_factor_ex", 0, 1), ("_linalg_det", 1, 2), ("_linalg_slogdet", 2, 3)):
            for result in run(f"aten::{name}", a):
                p, lower, upper = torch.lu_unpack(*(result[part] for part in parts))
                # determinants return the LU of the transposed matrix: see linalg.py
                torch.testing.assert_close(p @ lower @ upper, a if name == "linalg_lu_factor_ex" else a.mT)
        for determinant, *_ in run("aten::_linalg_det", a):
            assert abs(determinant) < 1e-5
        for sign, logarithm, *_ in run("aten::_linalg_slogdet", a):
            assert abs(sign) * logarithm.exp() < 1e-5


@each("dtype", DTYPES)
@each("upper", [False, True])
def test_cholesky(dtype: torch.dtype, upper: bool) -> None:
    a = positive(2, 4, 4, dtype=dtype)
    one_triangle = a.triu() if upper else a.tril()
    check("aten::linalg_cholesky_ex", one_triangle, upper=upper, **LOOSE)
    if hasattr(aten, "cholesky"):  # until torch 2.14
        check("aten::cholesky", a, upper, **LOOSE)
    factor = aten.linalg_cholesky(a, upper=upper)
    check("aten::cholesky_inverse", factor, upper, **LOOSE)
    check("aten::cholesky_solve", rand(2, 4, 3, dtype=dtype), factor, upper, **LOOSE)
    check("aten::cholesky_solve", rand(4, 3, dtype=dtype), factor, upper, **LOOSE)


def test_cholesky_reports_the_failed_minor() -> None:
    a = positive(3, 4, 4)
    a[1, 2, 2] = -1
    a[2, 0, 0] = 0
    with jax.enable_x64(True):
        for upper in (False, True):
            expected, got = run("aten::linalg_cholesky_ex", a, upper=upper)
            torch.testing.assert_close(got[1], expected[1])


@pytest.mark.filterwarnings("ignore:torch.triangular_solve is deprecated")  # torch's kernel warns once in a process
@each("dtype", DTYPES)
def test_triangular(dtype: torch.dtype) -> None:
    a, b = rand(2, 4, 4, dtype=dtype) + 4 * torch.eye(4, dtype=dtype), rand(2, 4, 3, dtype=dtype)
    for upper in (True, False):
        for unit in (True, False):
            check("aten::linalg_solve_triangular", a, b, upper=upper, unitriangular=unit, **LOOSE)
            check("aten::linalg_solve_triangular", a, b.mT, upper=upper, left=False, unitriangular=unit, **LOOSE)
            check("aten::triangular_solve", b, a, upper, unit, unit, **LOOSE)
    check("aten::linalg_solve_triangular", a[0], b, upper=True, **LOOSE)


@each("dtype", DTYPES)
def test_products_and_exponential(dtype: torch.dtype) -> None:
    check("aten::linalg_cross", rand(4, 3, dtype=dtype), rand(1, 3, dtype=dtype))
    check("aten::linalg_cross", rand(3, 4, dtype=dtype), rand(3, 4, dtype=dtype), dim=0)
    check("aten::linalg_householder_product", rand(2, 5, 3, dtype=dtype), rand(2, 3, dtype=dtype), **LOOSE)
    check("aten::linalg_matrix_exp", rand(2, 3, 3, dtype=dtype), **LOOSE)
    check("aten::linalg_matrix_exp", rand(1, 1, dtype=dtype) * 3, **LOOSE)


@each("normalization", [0, 1, 2])
@each("dims", [[3], [2, 0], [0, 1, 2, 3]])
def test_fft(normalization: int, dims: list[int]) -> None:
    x, z = rand(3, 4, 5, 6, dtype=torch.float64), rand(3, 4, 5, 6, dtype=torch.complex128)
    for flag in (True, False):
        check("aten::_fft_c2c", z, dims, normalization, flag)
        check("aten::_fft_r2c", x, dims, normalization, flag)
    half = torch.fft.rfftn(x, dim=dims)
    check("aten::_fft_c2r", half, dims, normalization, x.shape[dims[-1]])


def test_fft_single_precision_and_odd_sizes() -> None:
    check("aten::_fft_r2c", rand(3, 7), [1], 0, True, **LOOSE)
    check("aten::_fft_c2r", rand(3, 4, dtype=torch.complex64), [1], 2, 7, **LOOSE)
    check("aten::_fft_c2c", rand(8, dtype=torch.complex64), [0], 1, False, **LOOSE)


COLUMNS = [
    ((2, 3, 7, 8), [3, 2], [1, 1], [0, 0], [1, 1]),
    ((2, 3, 7, 8), [3, 2], [1, 2], [1, 1], [2, 3]),
    ((3, 7, 8), [2, 2], [1, 1], [0, 1], [2, 2]),
]


@each("case", COLUMNS)
@each("dtype", [torch.float32, torch.bfloat16])
def test_im2col(case: tuple, dtype: torch.dtype) -> None:
    shape, *geometry = case
    x = rand(*shape, dtype=dtype)
    check("aten::im2col", x, *geometry)
    columns = torch.randn_like(aten.im2col(x, *geometry))
    loose = {"rtol": 2e-2, "atol": 5e-2} if dtype == torch.bfloat16 else {}
    check("aten::col2im", columns, list(shape[-2:]), *geometry, **loose)


# bilinear, nearest, bicubic; zeros, border, reflection
@each(
    ("mode", "padding", "align_corners"),
    [
        (0, 0, False),
        (0, 1, True),
        (0, 2, False),
        (0, 2, True),
        (1, 0, True),
        (1, 2, False),
        (2, 0, False),
        (2, 2, True),
    ],
)
def test_grid_sampler(mode: int, padding: int, align_corners: bool) -> None:
    torch.manual_seed(3)
    args = torch.randn(2, 3, 5, 6), torch.rand(2, 4, 3, 2) * 3 - 1.5, mode, padding, align_corners
    check("aten::grid_sampler_2d", *args, **LOOSE)
    grad = torch.randn(2, 3, 4, 3)
    check("aten::grid_sampler_2d_backward", grad, *args, [True, True], **LOOSE)
    if mode < 2:
        args = torch.randn(1, 2, 4, 5, 6), torch.rand(1, 3, 2, 4, 3) * 3 - 1.5, mode, padding, align_corners
        check("aten::grid_sampler_3d", *args, **LOOSE)
        check("aten::grid_sampler_3d_backward", torch.randn(1, 2, 3, 2, 4), *args, [True, True], **LOOSE)


def test_affine_grid() -> None:
    for corners in (True, False):
        check("aten::affine_grid_generator", torch.randn(2, 2, 3), [2, 1, 4, 5], corners)
        check("aten::affine_grid_generator", torch.randn(2, 3, 4), [2, 1, 3, 4, 5], corners)


@each("dtype", DTYPES)
@each("shape", [(5, 3), (2, 3, 5), (2, 4, 4), (0, 3)])
def test_pinv(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    a, number = rand(*shape, dtype=dtype), rand(1, dtype=dtype).real.dtype
    check("aten::linalg_pinv.atol_rtol_tensor", a, **LOOSE)
    check("aten::linalg_pinv.atol_rtol_tensor", a, None, torch.tensor(0.5, dtype=number), **LOOSE)
    check("aten::linalg_pinv.atol_rtol_tensor", a, torch.tensor(1.0, dtype=number), **LOOSE)
    if shape == (2, 4, 4):
        cut = torch.tensor([1.0, 0.1], dtype=number)
        check("aten::linalg_pinv.atol_rtol_tensor", a + a.mH, cut, None, True, **LOOSE)


#: Shapes of (matrix, right-hand side).
SYSTEMS = [
    ((3, 2), (3,)), ((2, 3), (2,)), ((2, 3, 2), (2, 3)), ((2, 3, 2), (2, 3, 4)), ((2, 2, 3), (2, 2)), ((3, 3), (3, 1)),
    ((3, 0), (3, 2)), ((0, 2), (0, 2)), ((3, 2), (3, 0)), ((0, 3, 2), (0, 3, 1)),
]  # fmt: skip


@each("dtype", DTYPES)
@each("driver", [None, "gelsy", "gels", "gelsd", "gelss"])
@each("shapes", SYSTEMS)
def test_lstsq(shapes: tuple[tuple[int, ...], tuple[int, ...]], driver: str | None, dtype: torch.dtype) -> None:
    a, b = (rand(*shape, dtype=dtype) for shape in shapes)
    if driver in ("gelsd", "gelss") and (a.shape[-2] > a.shape[-1] or 0 in b.shape):
        return  # the size of the residuals depends on values; the CPU kernel raises for empty matrices
    if driver != "gels" and 0 in b.shape and 0 not in a.shape:
        return  # the CPU kernel does not write the rank
    check("aten::linalg_lstsq", a, b, None, driver=driver, **LOOSE)


@each("driver", ["gelsd", "gelss"])  # gelsy reads uninitialized memory
def test_lstsq_of_a_lower_rank(driver: str) -> None:
    a = rand(3, 1) @ rand(1, 4)
    check("aten::linalg_lstsq", a, rand(3, 2), 1e-3, driver=driver, **LOOSE)


@each("dtype", DTYPES)
@each("left", [True, False])
@each("transpose", [True, False])
def test_ormqr(left: bool, transpose: bool, dtype: torch.dtype) -> None:
    reflectors, tau = torch.geqrf(rand(2, 5, 3, dtype=dtype))
    other = rand(2, 5, 4, dtype=dtype) if left else rand(2, 4, 5, dtype=dtype)
    check("aten::ormqr", reflectors, tau, other, left, transpose, **LOOSE)


@each("left", [True, False])
def test_ormqr_of_more_columns_than_rows(left: bool) -> None:
    reflectors, tau = torch.geqrf(rand(2, 3, 5))
    check("aten::ormqr", reflectors, tau, rand(2, 3, 4) if left else rand(2, 4, 3), left, True, **LOOSE)


@each("shape", [(5, 3), (3, 5), (2, 4, 4), (0, 3)])
def test_pinv_as_on_a_tpu(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The formulation for TPUs uses complex singular vectors without imaginary parts; here computed by LAPACK."""
    monkeypatch.setattr(jax.lax, "platform_dependent", lambda *args, tpu, default: tpu(*args))
    check("aten::linalg_pinv.atol_rtol_tensor", torch.randn(*shape), **LOOSE)
