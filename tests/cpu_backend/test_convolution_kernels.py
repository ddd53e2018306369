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


@pytest.mark.parametrize(("kernel", "groups"), [((48, 32, 1, 1), 1), ((32, 1, 3, 3), 32)])
def test_images_with_channels_last(kernel: tuple[int, ...], groups: int) -> None:
    """The kernels read and write transposed images, as those of a LayerNorm over channels."""

    def values(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        out = F.conv2d(x.permute(0, 3, 1, 2), w, groups=groups).permute(0, 2, 3, 1)
        return [out.detach(), *torch.autograd.grad(out.cos().sum(), (x, w))]

    torch.manual_seed(0)
    program_cache.cache.clear()
    with counts() as moved:
        same(values, torch.randn(8, 24, 20, 32), torch.randn(kernel), rtol=2e-3, atol=2e-3)
    assert moved[CALLS] >= 2


def test_infinity_under_a_pointwise_kernel() -> None:
    """It reaches the outputs of its pixel, and the weights of its channel."""
    image, weight = torch.randn(8, 40, 24, 24), torch.randn(30, 40, 1, 1)
    image[3, 7, 2, 5] = torch.inf

    def values(x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        w = w.detach().requires_grad_()
        out = F.conv2d(x, w)
        return [out.detach().isfinite(), torch.autograd.grad(out.sum(), w)[0].isfinite()]

    program_cache.cache.clear()
    with counts() as moved:
        found = [tensor.cpu() for tensor in values(image.to("xla"), weight.to("xla"))]
    assert moved[CALLS] >= 2
    for ours, expected in zip(found, values(image, weight), strict=True):
        assert torch.equal(ours, expected) and 0 < int((~expected).sum()) <= 30


#: (channels, image, kernel, padding, dilation) of depthwise convolutions.
DEPTHWISE = [
    (64, (16, 16), (7, 7), 3, 1), (9, (13, 11), (5, 7), (2, 3), 1), (16, (9, 20), (4, 5), (3, 4), 2),
    (40, (128,), (31,), 15, 1), (8, (440,), (9,), 12, 3), (5, (1650,), (4,), 0, 1), (3, (30, 40), (11, 1), 5, 1),
    (70, (7, 7), (7, 7), 3, 1), (8, (133,), (64,), 32, 1), (96, (14, 14), (3, 3), 1, 1), (160, (4, 4), (3, 3), 1, 1),
    (400, (9, 2), (3, 1), (1, 0), 1), (50, (5, 23), (2, 3), (1, 2), (2, 3)), (96, (40,), (3,), 0, 4),
    (300, (3, 3), (2, 2), 2, 1),
]  # fmt: skip


def _depthwise_operands() -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = [
        shape
        for channels, image, kernel, *_ in DEPTHWISE
        for shape in ((24, channels, *image), (channels, 1, *kernel), (channels,))
    ]
    return [torch.randn(shape) for shape in shapes]


def _depthwise(given: tuple[bool, ...], stride: int, *operands: torch.Tensor) -> list[torch.Tensor]:
    """Return each result, and the gradients of the given operands of each convolution: image, weight, bias."""
    total, wanted, results = torch.zeros((), device=operands[0].device), [], []
    for i, (channels, image, _, padding, dilation) in enumerate(DEPTHWISE):
        leaves = [t.detach().requires_grad_(own) for t, own in zip(operands[3 * i : 3 * i + 3], given, strict=True)]
        wanted += [leaf for leaf in leaves if leaf.requires_grad]
        out = (F.conv1d if len(image) == 1 else F.conv2d)(*leaves, stride, padding, dilation, channels)
        results.append(out.detach())
        total = total + (out * torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)).sum()
    return [*results, *torch.autograd.grad(total, wanted)]


@pytest.mark.parametrize("given", [(True, True, True), (False, True, False), (True, False, True), (False, True, True)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_depthwise_kernels(given: tuple[bool, ...], stride: int) -> None:
    program_cache.cache.clear()
    with counts() as moved:
        same(functools.partial(_depthwise, given, stride), *_depthwise_operands(), rtol=2e-3, atol=2e-3)
    assert moved[CALLS] >= 2 * len(DEPTHWISE)


def test_infinity_in_the_image_of_a_depthwise_kernel() -> None:
    """It reaches the taps that touch it only."""
    image, weight = torch.randn(2, 40, 12, 12), torch.randn(40, 1, 5, 5)
    image[0, 3, 4, 11] = torch.inf

    def gradient(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        w = w.detach().requires_grad_()
        return torch.autograd.grad(F.conv2d(x, w, groups=40).sum(), w)[0].isfinite()

    with counts() as moved:
        found = gradient(image.to("xla"), weight.to("xla")).cpu()
    expected = gradient(image, weight)
    assert moved[CALLS] > 0 and torch.equal(found, expected) and 0 < int((~expected).sum()) < 25


def test_depthwise_kernels_do_not_depend_on_threads() -> None:
    operands = [tensor.to("xla") for tensor in _depthwise_operands()]
    found, before = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append([tensor.cpu() for tensor in _depthwise((True, True, True), 2, *operands)])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("place", ["image", "gradient", "weight"])
def test_infinity_reaches_what_a_depthwise_kernel_multiplies(place: str) -> None:
    """And nothing beside it in memory; padding is not multiplied with an infinite weight."""
    image, weight, grad = torch.randn(2, 40, 12, 12), torch.randn(40, 1, 3, 3), torch.randn(2, 40, 12, 12)
    {"image": image, "gradient": grad, "weight": weight}[place].view(-1, 3)[70, 2] = torch.inf

    def values(x: torch.Tensor, w: torch.Tensor, g: torch.Tensor) -> list[torch.Tensor]:
        x = x.detach().requires_grad_()
        out = F.conv2d(x, w, padding=1, groups=40)
        return [out.detach().isfinite(), torch.autograd.grad(out, x, g)[0].isfinite()]

    program_cache.cache.clear()
    with counts() as moved:
        found = [tensor.cpu() for tensor in values(*(tensor.to("xla") for tensor in (image, weight, grad)))]
    expected = values(image, weight, grad)
    assert moved[CALLS] >= 2 and all(map(torch.equal, found, expected))
    assert not all(own.all() for own in expected)
