"""Jagged nested tensors on xla, as far as attention needs them: values and gradients of each sequence on the CPU."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import torch_xla
from tests.support.helpers import counts

LENGTHS = (3, 5, 1, 4)
HEADS, SIZE = 2, 8
WIDTH = HEADS * SIZE


def _sequences(seed: int = 0) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(length, WIDTH, generator=generator) for length in LENGTHS]


def _jagged(sequences: list[Tensor]) -> Tensor:
    moved = [t.to("xla") for t in sequences]
    return torch.nested.nested_tensor(moved, layout=torch.jagged, requires_grad=True)


def _check(on_jagged: Callable[[Tensor], Tensor], on_each: Callable[[Tensor], Tensor]) -> None:
    """Compare values and gradients; ``on_jagged`` returns a nested tensor."""
    x, each = _jagged(_sequences()), [t.requires_grad_() for t in _sequences()]
    with counts() as moved:
        out = on_jagged(x)
        out.values().square().sum().backward()
        torch_xla.sync()
    expected = [on_each(t) for t in each]
    torch.cat([e.square().sum().reshape(1) for e in expected]).sum().backward()
    assert out.device.type == "xla" and x.grad is not None
    torch.testing.assert_close(out.values().cpu(), torch.cat(expected), rtol=1e-5, atol=1e-5)
    grads = torch.cat([t.grad for t in each if t.grad is not None])
    torch.testing.assert_close(x.grad.values().cpu(), grads, rtol=1e-4, atol=1e-5)
    assert not moved.fallbacks


def _heads(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return [batch, heads, length, size], or without the batch."""
    return F.linear(x, weight, bias).unflatten(-1, [HEADS, SIZE]).transpose(-3, -2)


def _attention(weights: Tensor, bias: Tensor, is_causal: bool) -> Callable[[Tensor], Tensor]:
    def attend(x: Tensor) -> Tensor:
        parts = (
            _heads(x, w.to(x.device), b.to(x.device)) for w, b in zip(weights.chunk(3), bias.chunk(3), strict=True)
        )
        return F.scaled_dot_product_attention(*parts, is_causal=is_causal).transpose(-3, -2).flatten(-2)

    return attend


@pytest.mark.parametrize("is_causal", [False, True])
def test_attention(is_causal: bool) -> None:
    generator = torch.Generator().manual_seed(1)
    weights, bias = torch.randn(3 * WIDTH, WIDTH, generator=generator) / 4, torch.randn(3 * WIDTH, generator=generator)
    attend = _attention(weights, bias, is_causal)
    _check(attend, attend)


def test_attention_to_other_sequences() -> None:
    """Queries and keys of different lengths."""
    keys = [torch.randn(n, WIDTH) for n in (2, 6, 4, 3)]
    xla_keys = torch.nested.nested_tensor([k.to("xla") for k in keys], layout=torch.jagged)
    split = lambda x: x.unflatten(-1, [HEADS, SIZE]).transpose(-3, -2)
    query = _jagged(_sequences())
    found = F.scaled_dot_product_attention(split(query), split(xla_keys), split(xla_keys)).transpose(1, 2)
    expected = [
        F.scaled_dot_product_attention(split(q), split(k), split(k)).transpose(0, 1)
        for q, k in zip(_sequences(), keys, strict=True)
    ]
    torch.testing.assert_close(found.values().cpu(), torch.cat(expected), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: F.gelu(x) * 2 + x,
        lambda x: torch.softmax(x, -1),
        lambda x: F.layer_norm(x, (WIDTH,)),
        lambda x: F.linear(x, torch.ones(4, WIDTH, device=x.device)),
    ],
    ids=["elementwise", "softmax", "layer_norm", "linear"],
)
def test_operations_on_values(function: Callable[[Tensor], Tensor]) -> None:
    _check(function, function)


def test_padding() -> None:
    x, each = _jagged(_sequences()), [t.requires_grad_() for t in _sequences()]
    expected = torch.nn.utils.rnn.pad_sequence(each, batch_first=True, padding_value=-1.0)
    with counts() as moved:
        found = x.to_padded_tensor(-1.0)
        found.pow(3).sum().backward()
        torch_xla.sync()
    expected.pow(3).sum().backward()
    assert x.grad is not None and not moved.fallbacks
    torch.testing.assert_close(found.cpu(), expected)
    torch.testing.assert_close(x.grad.values().cpu(), torch.cat([t.grad for t in each if t.grad is not None]))


def test_sequences_and_transfers() -> None:
    sequences = _sequences()
    there = torch.nested.nested_tensor(sequences, layout=torch.jagged)
    here = there.to("xla")
    assert here.is_nested and here.device.type == "xla"
    for got, expected in zip(here.unbind(), sequences, strict=True):
        assert torch.equal(got.cpu(), expected)
    assert torch.equal(here.cpu().values(), there.values())
    offsets = torch.tensor([0, 3, 8, 9, 13], device="xla")
    made = torch.nested.nested_tensor_from_jagged(torch.cat(sequences).to("xla"), offsets)
    assert torch.equal(made.unbind()[1].cpu(), sequences[1])


def test_gradient_of_one_sequence() -> None:
    x = _jagged(_sequences())
    (x.unbind()[1] * 2).sum().backward()
    assert x.grad is not None
    assert x.grad.values().sum().item() == 2 * LENGTHS[1] * WIDTH


def test_steps_of_the_same_lengths_share_a_program() -> None:
    weights, bias = torch.ones(3 * WIDTH, WIDTH, device="xla") / 8, torch.zeros(3 * WIDTH, device="xla")
    attend = _attention(weights, bias, True)
    torch_xla.sync()

    def step(seed: int) -> None:
        x = _jagged(_sequences(seed))
        attend(x).values().sum().backward()
        torch_xla.sync()

    step(0)
    with counts() as moved:
        step(1)
    assert moved.compilations == 0


def test_unsupported_calls() -> None:
    heads = _jagged(_sequences()).unflatten(-1, [HEADS, SIZE]).transpose(1, 2)
    with pytest.raises(RuntimeError, match="take no attn_mask; use is_causal"):
        F.scaled_dot_product_attention(heads, heads, heads, attn_mask=torch.ones(1, 1, 1, 1, device="xla"))
    values = torch.randn(2, 4, WIDTH, device="xla")
    holes = torch.nested.narrow(
        values, 1, torch.tensor([0, 1], device="xla"), torch.tensor([3, 2], device="xla"), layout=torch.jagged
    )
    holes = holes.unflatten(-1, [HEADS, SIZE]).transpose(1, 2)
    with pytest.raises(RuntimeError, match="nested tensors with gaps"):
        F.scaled_dot_product_attention(holes, holes, holes)
