"""Rules of special functions for negative arguments and near poles, and of orthogonal polynomials of every degree."""

from __future__ import annotations

import torch

import torch_xla._engine.lowering.rules.distance
import torch_xla._engine.lowering.rules.linalg
import torch_xla._engine.lowering.rules.polynomials
import torch_xla._engine.lowering.rules.special  # noqa: F401
from tests.support.rule_check import check, each

FAMILIES = ["chebyshev_polynomial_t", "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w"]
OTHERS = ["hermite_polynomial_h", "hermite_polynomial_he", "laguerre_polynomial_l", "legendre_polynomial_p"]


@each("name", FAMILIES + OTHERS + [f"shifted_{name}" for name in FAMILIES])
def test_polynomial(name: str) -> None:
    x, n = torch.linspace(-0.9, 1.9, 9, dtype=torch.float64)[:, None], torch.arange(-1, 9, dtype=torch.float64)
    check(f"aten::special_{name}", x, n)
    check(f"aten::special_{name}.n_scalar", x, 5)
    check(f"aten::special_{name}.x_scalar", 0.25, n)


@each("order", range(5))
def test_polygamma_left_of_zero(order: int) -> None:
    torch.manual_seed(0)
    x = torch.rand(64, dtype=torch.float64) * 18 - 9
    check("aten::polygamma", order, torch.cat([x, torch.tensor([-2.0, 0.0, 0.5])]), rtol=1e-6, atol=1e-6)
    check("aten::polygamma", order, x.float(), rtol=1e-5, atol=1e-5)


def test_zeta_everywhere() -> None:
    x, q = torch.tensor([[0.5], [1.0], [2.0], [2.5], [3.0]]), torch.tensor([-8.3, -2.0, -0.5, 0.0, 0.1, 1.0, 40.0])
    check("aten::special_zeta", x, q)


def test_complex_logaddexp_takes_the_branch_of_torch() -> None:
    torch.manual_seed(0)
    check("aten::logaddexp", torch.randn(32, dtype=torch.complex64) * 5, torch.randn(32, dtype=torch.complex64) * 5)


def test_distances() -> None:
    torch.manual_seed(0)
    check("aten::dist", torch.randn(4, dtype=torch.complex64), torch.randn(4, dtype=torch.complex64))
    x = torch.randn(5, 3)
    for p in (0.0, 1.0, 2.0, 3.5, float("inf")):
        check("aten::_pdist_forward", x, p)
        distance = torch.ops.aten._pdist_forward(x, p)
        check("aten::_pdist_backward", torch.randn_like(distance), x, p, distance, rtol=1e-4, atol=1e-5)


def test_geqrf_and_trilinear() -> None:
    torch.manual_seed(0)
    check("aten::geqrf", torch.randn(2, 4, 3, dtype=torch.float64))
    check("aten::_trilinear", torch.randn(2, 3), torch.randn(4, 3, 5), torch.randn(2, 5), [1, 3], [0], [1, 2], [2, 3])
    check("aten::linalg_cholesky_ex", torch.zeros(2, 0, 0))
    grad, mask = torch.randn(3, 4), torch.tensor([True, False, True, True])
    check("aten::masked_scatter_backward", grad, mask, [3, 4])
