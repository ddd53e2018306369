"""Torch programs that call each ATen kernel of the CPU backend at least once; also compiled over a mesh."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass
class Case:
    """A computation with gradients that is large enough for a kernel call."""

    function: Callable[..., torch.Tensor]
    shapes: tuple[tuple[int, ...], ...]
    dtype: torch.dtype = torch.float32
    loose: float = 2e-3


CASES = {
    "lists": Case(lambda x, y: torch.cat(torch._foreach_mul([x, y], 2.5)), ((4, 8), (3, 8))),
    "numbers": Case(lambda x: x * 2.5 + 3.5 - 4.5 / (x.abs() + 5.5), ((8, 8),)),
    "convolution": Case(
        lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1), ((8, 16, 32, 32), (32, 16, 3, 3), (32,))
    ),
    "attention": Case(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), ((2, 4, 200, 32),) * 3),
    "max pooling": Case(lambda x: F.max_pool2d(x, 3, 2, 1), ((4, 16, 64, 64),)),
    "average pooling": Case(lambda x: F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), ((4, 16, 64, 64),)),
    "sorting": Case(lambda x: x.sort(0, descending=True)[0], ((200, 50),)),
    "sums": Case(lambda x: x.sum(0), ((70, 50),)),
    "layer norm": Case(lambda x, w, b: F.layer_norm(x, (77,), w, b), ((6, 20, 77), (77,), (77,))),
    "batch norm": Case(lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), ((8, 16, 8, 8), (16,), (16,))),
    "LSTM": Case(
        lambda x, *state_and_weights: torch.cat(
            [
                result.flatten()
                for result in torch.lstm(
                    x, state_and_weights[:2], state_and_weights[2:], True, 1, 0.0, False, False, False
                )
            ]
        ),
        ((9, 6, 24), (1, 6, 80), (1, 6, 80), (320, 24), (320, 80), (320,), (320,)),
    ),
    "products": Case(lambda a, b: a @ b, ((256, 128), (128, 256)), torch.bfloat16, 0.1),
    "products of batches": Case(lambda a, b: a.bmm(b), ((8, 96, 128), (8, 128, 96)), torch.bfloat16, 0.1),
}


def with_gradients(case: Case) -> Callable[..., list[torch.Tensor]]:
    """Return a function of the inputs that returns the result and the gradients of a weighted sum of it."""

    def function(*inputs: torch.Tensor) -> list[torch.Tensor]:
        out = case.function(*inputs)
        weights = torch.linspace(-1, 1, out.numel()).to(out.device, out.dtype).reshape(out.shape)
        return [out.detach(), *torch.autograd.grad((out * weights).sum(), inputs)]

    return function
