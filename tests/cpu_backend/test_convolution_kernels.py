"""Convolutions of the CPU kernels that oneDNN does not compute: values and gradients next to CPU torch."""

from __future__ import annotations

import functools

import pytest
import torch
import torch.nn.functional as F

from tests.support.helpers import counts, same
from torch_xla._engine.compilation import program_cache

CALLS = "CpuKernelCalls"
CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}

#: (images, channels, image, outputs, has a bias) of convolutions with kernels of one tap: products of weights that are
#: smaller and larger than an image, images of one pixel and of too few pixels.
POINTWISE = [
    (8, 32, (24, 24), 16, False), (3, 40, (9, 31), 70, True), (2, 300, (4, 4), 500, True), (1, 64, (40, 40), 96, False),
    (1, 600, (5, 5), 700, True), (64, 128, (1, 1), 300, True), (5, 64, (700,), 80, True),
    (2, 20, (9, 11, 13), 50, False), (4, 400, (3, 5), 500, True), (70, 200, (1,), 200, False),
]  # fmt: skip


def _pointwise_operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    operands = []
    for images, channels, image, outputs, has_bias in POINTWISE:
        operands += [torch.randn(images, channels, *image), torch.randn(outputs, channels, *[1] * len(image))]
        operands += [torch.randn(outputs)] * has_bias
    return operands


def _pointwise(wanted: tuple[bool, ...], *operands: torch.Tensor) -> list[torch.Tensor]:
    """Return the results, and the gradients of the wanted operands: images, weights, biases."""
    left, results, leaves = list(operands), [], []
    total = torch.zeros((), device=operands[0].device)
    for _, _, image, _, has_bias in POINTWISE:
        own = [left.pop(0).detach().requires_grad_(wanted[i]) for i in range(2 + has_bias)]
        leaves += [leaf for leaf in own if leaf.requires_grad]
        results.append(CONVOLUTIONS[len(image)](*own))
        weights = torch.linspace(-1, 1, results[-1].numel(), device=total.device)
        total = total + (results[-1] * weights.view_as(results[-1])).sum()
    return [*(result.detach() for result in results), *torch.autograd.grad(total, leaves)]


@pytest.mark.parametrize("wanted", [(True, True, True), (False, True, False), (True, False, True)])
def test_pointwise_kernels(wanted: tuple[bool, ...]) -> None:
    program_cache.cache.clear()
    with counts() as moved:
        same(functools.partial(_pointwise, wanted), *_pointwise_operands(), rtol=2e-3, atol=2e-3)
    assert moved[CALLS] >= 2 * len(POINTWISE)


def test_infinity_under_a_pointwise_kernel() -> None:
    """It reaches the outputs of its pixel, and the weights of its channel."""
    image, weight = torch.randn(8, 40, 24, 24), torch.randn(30, 40, 1, 1)
    image[3, 7, 2, 5] = torch.inf

    def values(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()
        out = F.conv2d(x, w)
        return [out.detach().isfinite(), torch.autograd.grad(out.sum(), w)[0].isfinite()]

    with counts() as moved:
        found = [tensor.cpu() for tensor in values(image.to("xla"), weight.to("xla"))]
    assert moved[CALLS] >= 2
    for ours, expected in zip(found, values(image, weight), strict=True):
        assert torch.equal(ours, expected) and 0 < int((~expected).sum()) <= 30
